"""The text of a plan of svcctl upgrade."""

from typing import TYPE_CHECKING, Any, Final

from svc.admin.changes import show_value

if TYPE_CHECKING:  # its packages come with an extra
    from svc.upgrade.plan import Plan

_MAX_VALUE: Final = 100  # characters of a value in a line


def plan_text(made: "Plan") -> str:
    """Return what a plan finds, its steps, and what forbids it."""
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
    return "\n".join([*lines, *(f"blocked: {text}" for text in made.blockers)])


def _value(value: Any) -> str:
    text = "none" if value is None else show_value(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."
