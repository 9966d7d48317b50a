"""The texts of svcctl upgrade about plans and runs."""

from typing import TYPE_CHECKING, Any, Final

from svc.admin.field_changes import show_value

if TYPE_CHECKING:  # its packages come with an extra
    from svc.upgrade.plan import Plan
    from svc.upgrade.run_record import Run

_MAX_VALUE: Final = 100  # characters of a value in a line
_CONTEXT: Final = 20  # of them before the first difference of two long values


def plan_text(made: "Plan") -> str:
    """Return what a plan finds, its steps, what forbids it, and what is next."""
    lines = [f"procedure: {made.procedure}", *_versions(made)]
    lines += [line for name, value in made.findings.found.items() for line in _fact(name, value)]
    idle = [step for step, look in made.looks if look.is_done and not look.notes and not look.blockers]
    lines += [f"{len(idle)} of {len(made.looks)} steps have nothing to do (-o json lists them)"] if idle else []
    for step, look in made.looks:
        if step in idle:
            continue
        state = "done" if look.is_done else "unverified" if look.unverified else "to do"
        lines.append(f"{step.name}: {state}")
        if not look.is_done:
            lines += [f"  {_change(*change)}" for change in look.changes]
            lines += [f"  destroys {step.destroys}"] if step.destroys else []
            lines += [] if step.can_undo else ["  cannot be undone"]
        lines += [f"  note: {text.removeprefix(f'{step.name}: ')}" for text in look.notes]
        lines += [f"  asks for --ack {step.name}: {text.removeprefix(f'{step.name}: ')}" for text in look.asks]
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
    return f"verified: all {len(made.looks)} steps{f' to {target}' if target else ''} are done"


def run_text(run: "Run", steps: str) -> str:
    """Return a run with the table of its steps, and what is next."""
    versions = f", from {run.source or 'unknown'} to {run.target}" if run.target else ""
    head = f"run {run.name}: {run.procedure}{versions}: {run.state}"
    if idle := list(run.steps.values()).count("skipped"):
        steps += f"\n{idle} steps had nothing to do (-o json lists them)"
    if run.is_open:
        steps += "\nnext: `svcctl upgrade apply` with the options of this run goes on, and `svcctl upgrade undo` goes back"
    return "\n".join([head, *(f"{name}: {text}" for name, text in run.noted.items()), steps])


def _versions(made: "Plan") -> list[str]:
    source, target = made.findings.source or "unknown", made.findings.target
    if not target:
        return []
    return [f"from {source} to {target}" if source != target else f"version {target}, which stays"]


def _fact(name: str, value: Any) -> list[str]:
    """Return the lines about a thing that is found. Several texts have a line each."""
    texts = value if isinstance(value, list) else [value]
    if len(texts) < 2:
        return [f"{name}: {texts[0] or 'unknown'}" if texts else f"{name}: none"]
    return [f"{name}:", *(f"  {text}" for text in texts)]


def _change(field: str, before: Any, after: Any) -> str:
    """Return a change of a field. What two long values begin with is left out."""
    old, new = _value(before), _value(after)
    same = next((place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    if same > _MAX_VALUE - _CONTEXT:
        old, new = (f"...{text[same - _CONTEXT :]}" for text in (old, new))
    name = field or "object"
    if field.endswith("[+]"):
        return f"{name}: {_cut(new)}"
    return f"{name}: {_cut(old)}" if field.endswith("[-]") else f"{name}: {_cut(old)} -> {_cut(new)}"


def _value(value: Any) -> str:
    return "none" if value is None else show_value(value)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."
