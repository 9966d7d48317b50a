"""Carry out a job. Short calls have right of way over the others."""

from svc.agent.queue import Job
from svc.right_of_way import RIGHT_OF_WAY, end_precedence, take_precedence
from svc.waits.wait import Wait


def carry_out(job: Job) -> Wait | None:
    """Run the job. Return what it waits for, if it goes on later."""
    return _run_short(job) if job.lane.is_short else _run_behind(job)


def _run_short(job: Job) -> Wait | None:
    take_precedence()
    try:
        return job.run(job)
    finally:
        end_precedence()
        RIGHT_OF_WAY.end()


def _run_behind(job: Job) -> Wait | None:
    end_precedence()
    if job.lane.gives_way:
        RIGHT_OF_WAY.give_way()
    return job.run(job)
