"""The answer of commands that change objects: a line for each object, and in a dry run for each field."""

import sys
from collections.abc import Sequence
from typing import Any

from svc.admin.changes import Change
from svc.admin.field_changes import ABSENT, show_value
from svc.ctl.cli_context import echo_json, echo_yaml
from svc.ctl.output import OutputError
from svc.ctl.terminal import echo, visible


def show_changes(done: Sequence[Change], output: str, *, dry_run: bool) -> None:
    """Print what was done to each object, or would be. If that cannot be printed, the error says that it was done."""
    try:
        _print_changes(done, output, dry_run=dry_run)
        sys.stdout.flush()
    except OutputError as error:
        written = [] if dry_run else [visible(_reference(each)) for each in done if each.write]
        if not written:
            raise
        raise OutputError(f"{error}; written all the same: {', '.join(written)}") from None


def _print_changes(done: Sequence[Change], output: str, *, dry_run: bool) -> None:
    if output == "json":
        echo_json([_document(each) for each in done])
    elif output == "yaml":
        echo_yaml([_document(each) for each in done])
    elif output == "name":
        if done:
            echo("\n".join(visible(_reference(each)) for each in done))
    else:
        for each in done:
            _show(each, dry_run=dry_run)


def _show(each: Change, *, dry_run: bool) -> None:
    outcome = f"would be {each.outcome}" if dry_run and each.write else each.outcome
    echo(f"{_reference(each)} {outcome}")
    for field, before, after in each.fields() if dry_run else ():
        echo(f"  {field}: {show_value(before)} -> {show_value(after)}")


def _reference(each: Change) -> str:
    return each.wanted.kind.reference(each.after)


def _document(each: Change) -> dict[str, Any]:
    changed = [
        {"field": field} | {name: value for name, value in (("before", before), ("after", after)) if value is not ABSENT}
        for field, before, after in each.fields()
    ]
    namespace = {"namespace": each.after.namespace} if each.after.namespace else {}
    return {"kind": each.wanted.kind.name, "name": each.after.name, **namespace, "outcome": each.outcome, "changes": changed}
