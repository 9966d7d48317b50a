"""Deployments on an API server: `svcctl manifests`, and the removal of what it has applied."""

from pathlib import Path

import click
from click.testing import CliRunner

from harness.kube import ADMIN_TOKEN, Kube
from svc.ctl.main import main


def manifests(server: Kube, folder: Path, *arguments: str, token: str = ADMIN_TOKEN) -> click.testing.Result:
    """Run `svcctl manifests` for a server."""
    kubeconfig = str(server.kubeconfig(folder / "kubeconfig", token))
    return svcctl("manifests", "--kubeconfig", kubeconfig, *arguments)


def svcctl(*arguments: str) -> click.testing.Result:
    """Run svcctl."""
    return CliRunner().invoke(main, arguments)


def remove(server: Kube) -> None:
    """Delete everything that a deployment has, and wait until its kinds are no longer served."""
    for definition in server.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]:
        group, version = definition["spec"]["group"], definition["spec"]["versions"][0]["name"]
        name = definition["metadata"]["name"]
        server.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        server.await_gone(f"/apis/{group}/{version}/{definition['spec']['names']['plural']}")
    server.forget("daemonsets/", "deployments/", "poddisruptionbudgets/", "configmaps/default/", "configmaps/kube-system/cni-")
    for kind in ("serviceaccounts", "roles", "rolebindings", "configmaps"):
        server.forget(f"{kind}/kube-system/svc-", f"{kind}/net/")
    server.forget("clusterroles/svc-", "clusterrolebindings/svc-")
    server.uproot("namespaces/net")
