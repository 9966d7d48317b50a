"""The definition of the Installation, which the controller `operator` follows."""

from typing import Any

from svc.names import Names

Json = dict[str, Any]

KIND, PLURAL = "Installation", "installations"


def installation_definition(names: Names) -> Json:
    """Return the CustomResourceDefinition. svc checks the fields itself; the server keeps them all."""
    group, _, version = names.operator_api_version.partition("/")
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    fields = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    schema = {"type": "object", "properties": {**fields, "spec": kept, "status": kept}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()},
            "scope": "Cluster",
            "versions": [served | {"subresources": {"status": {}}}],
        },
    }
