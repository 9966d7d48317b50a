"""Faults of the servers of a datastore, while a node works: the leader ends, or answers late."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from harness.etcd import Cluster, Member

MEMBERS: Final = 3
SHARE: Final = 0.5  # of the lives of a node in which a server has a fault


@contextmanager
def disturbed(servers: Cluster, dice: random.Random) -> Iterator[str]:
    """Let the leader have a fault inside the block, or none; yield its name. Afterwards all members work."""
    if dice.random() > SHARE:
        yield "none"
        return
    leader = servers.leader()
    if dice.random() < 0.5:
        leader.kill()
        try:
            yield "ended"
        finally:
            servers.restart(leader)
    else:
        _signal(leader, signal.SIGSTOP)
        try:
            yield "late"
        finally:
            _signal(leader, signal.SIGCONT)
            leader.wait()


def _signal(member: Member, number: signal.Signals) -> None:
    assert member.process is not None
    member.process.send_signal(number)
