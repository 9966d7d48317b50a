"""Policies, and the definitions that a policy agent makes of its kinds in the Kubernetes API."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.kube import Kube
from svc.names import DEFAULT, Names

Json = dict[str, Any]

SCOPES = {"NetworkPolicy": "Namespaced", "GlobalNetworkPolicy": "Cluster"}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(api_version: str, kind: str, scope: str) -> Json:
    """Return the definition of a kind that another program would make."""
    group, _, version = api_version.partition("/")
    plural = f"{kind.lower()}s" if not kind.endswith("y") else f"{kind[:-1].lower()}ies"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": scope,
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


@contextmanager
def served_policies(kube: Kube, names: Names = DEFAULT) -> Iterator[None]:
    """Let the API server serve the kinds of policies."""
    made = [definition(names.crd_api_version, kind, scope) for kind, scope in SCOPES.items()]
    kube.apply(made)
    try:
        yield
    finally:
        for each in made:
            kube.call("DELETE", f"{DEFINITIONS}/{each['metadata']['name']}")
