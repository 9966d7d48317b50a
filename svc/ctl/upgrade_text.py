"""The texts of svcctl upgrade about plans and runs."""

from typing import TYPE_CHECKING, Any, Final

from svc.admin.changes import show_value

if TYPE_CHECKING:  # its packages come with an extra
    from svc.upgrade.plan import Plan
    from svc.upgrade.run_record import Run

_MAX_VALUE: Final = 100  # characters of a value in a line


def plan_text(made: "Plan") -> str:
    """Return what a plan finds, its steps, what forbids it, and what is next."""
    lines = [f"procedure: {made.procedure}", f"from {made.findings.source or 'unknown'} to {made.findings.target}"]
    found = made.findings.found.items()
    lines += [f"{name}: {', '.join(value) if isinstance(value, list) else value}" for name, value in found]
    for step, look in made.looks:
        state = "done" if look.is_done else "unverified" if look.unverified else "to do"
        lines.append(f"{step.name}: {state}")
        if not look.is_done:
            lines += [f"  {field or 'object'}: {_value(before)} -> {_value(after)}" for field, before, after in look.changes]
            lines += [f"  destroys {step.destroys}"] if step.destroys else []
            lines += [] if step.can_undo else ["  cannot be undone"]
        lines += [f"  note: {text}" for text in look.notes]
        lines += [f"  asks for --ack {step.name}: {text}" for text in look.asks]
    return "\n".join([*lines, *(f"blocked: {text}" for text in made.blockers), _next(made)])


def _next(made: "Plan") -> str:
    """Return what the user can do with a plan."""
    if made.blockers:
        return "next: correct what blocks, and make the plan again"
    if not made.open_steps:
        return "next: nothing, all steps are done; `svcctl upgrade verify` with the same options checks the result"
    acks = "".join(f" --ack {step.name}" for step, look in made.open_steps if look.asks)
    consent = f" and, with your consent,{acks}" if acks else ""
    return f"next: {len(made.open_steps)} of {len(made.looks)} steps, by `svcctl upgrade apply` with the same options{consent}"


def verified_text(made: "Plan") -> str:
    """Return what a verification has found."""
    target = made.findings.target
    return f"verified: {len(made.looks)} steps are done" + (f", and the cluster is at {target}" if target else "")


def run_text(run: "Run", steps: str) -> str:
    """Return a run with the table of its steps, and what is next."""
    versions = f", from {run.source or 'unknown'} to {run.target}" if run.target else ""
    head = f"run {run.name}: {run.procedure}{versions}: {run.state}"
    if run.is_open:
        steps += "\nnext: `svcctl upgrade apply` with the options of this run goes on, and `svcctl upgrade undo` goes back"
    return "\n".join([head, *(f"{name}: {text}" for name, text in run.noted.items()), steps])


def _value(value: Any) -> str:
    text = "none" if value is None else show_value(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."
