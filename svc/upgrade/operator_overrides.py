"""Fields whose value is decided elsewhere than in the manifest of the operator: by the operator, or by the user."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from svc.admin.installation_resource import reconcile
from svc.datastore.orch.store import OrchStore
from svc.model.errors import SvcError
from svc.upgrade.bundle import container_of
from svc.upgrade.writer import Writer

Json = dict[str, Any]

_MAX_TEXT: Final = 80  # characters of a value


def overridden(writer: Writer, installation: Json, live: Json | None, operator: Json) -> Iterator[str]:
    """Yield a sentence for each field that the operator will write over, and for each that the user has set.

    `live` is the operator in the cluster, and `operator` the one of the manifest."""
    if writer.names.operator == writer.names.controllers:  # else the operator is another product's
        yield from _written_over(writer, installation, operator["metadata"]["namespace"])
    spec = installation.get("spec") or {}
    for field, value in _leaves(spec) if spec else ():
        yield f"Installation/default: spec.{field} = {_shown(value)}, set by the user"
    wanted = _variables(operator)
    for name, value in _variables(live).items() if live else ():
        if name not in wanted:
            yield f"variable {name} of the operator = {_shown(value)}, which the manifest does not have"
        elif wanted[name] != value:
            yield f"variable {name} of the operator = {_shown(value)}; the manifest has {_shown(wanted[name])}"


def _written_over(writer: Writer, installation: Json, namespace: str) -> Iterator[str]:
    """Yield the fields of the deployment in a namespace that are not as the Installation says."""
    try:
        with closing(OrchStore({"kubeconfig": writer.helm.kubeconfig}, writer.names)) as store:
            cluster = reconcile.Cluster(writer.client, store, {"kind": "orch"}, writer.names, namespace=namespace)
            outcomes = reconcile.show(cluster, reconcile.plan(cluster, installation.get("spec") or {}))
    except SvcError as error:
        yield f"what the operator writes over is not known: {error}"
        return
    for each in outcomes:
        if not each.is_change:
            continue
        for field, before, after in each.changes:
            yield f"{each.kind} {each.name}: {field} = {_shown(before)}; the operator makes it {_shown(after)}"
        if not each.changes:
            yield f"{each.kind} {each.name} {each.outcome}, by the operator"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for key, below in value.items():
        yield from _leaves(below, f"{path}.{key}" if path else key)


def _variables(workload: Json) -> dict[str, Any]:
    """Return the variables of the program, each with its value or with its source."""
    found = container_of(workload).get("env") or ()
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in found}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
