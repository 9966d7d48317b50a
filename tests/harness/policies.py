"""Policies, and the definitions that a policy agent makes of its kinds in the Kubernetes API."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from harness.kube import Kube, Refused
from harness.polling import wait_until
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
    with served(kube, *(definition(names.crd_api_version, kind, scope) for kind, scope in SCOPES.items())):
        yield


@contextmanager
def served(kube: Kube, *definitions: Json) -> Iterator[None]:
    """Let the API server serve further kinds in the block. At its end, wait until they and their objects are gone."""
    paths = [f"{DEFINITIONS}/{each['metadata']['name']}" for each in definitions]
    kube.apply(definitions)
    try:
        yield
    finally:
        for path in paths:
            kube.call("DELETE", path)
        for path in paths:
            wait_until(partial(_is_gone, kube, path))


def _is_gone(kube: Kube, path: str) -> bool:
    try:
        kube.call("GET", path)
    except Refused as refusal:
        if refusal.status != HTTPStatus.NOT_FOUND:
            raise
        return True
    return False
