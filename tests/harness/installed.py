"""Installation by `svcctl install`, as from a pod whose service account has exactly the documented rights."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.cluster_node import ClusterNode
from harness.kube import Kube
from harness.reference_plugins import REFERENCE, require_plugin
from svc.deploy.rbac import role
from svc.names import DEFAULT

Json = dict[str, Any]

CHAINED = ("portmap", "bandwidth", "loopback")


def install(folder: Path, node: ClusterNode, kube: Kube, **settings: Any) -> Path:
    """Install, and return the directory of the network list.

    The settings are added to the configuration. Calls can be repeated.
    """
    conf_dir = folder / "net.d"
    for plugin in CHAINED:
        require_plugin(plugin)
        with suppress(FileExistsError):
            (node.bin_dir / plugin).symlink_to(REFERENCE / plugin)
    kube.apply(_rights())
    entry = folder / "entry.json"
    entry.write_text(json.dumps({
        "type": "svc", "datastore_type": "orch", "nodename": node.name, "policy": {"type": "orch"},
        "orch": {"kubeconfig": str(conf_dir / "svc-kubeconfig")}, "ipam": {"type": "svc-ipam", "assign_ipv6": "true"},
        **settings,
    }))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        patch.setenv("KUBERNETES_SERVICE_PORT", str(kube.port))
        node.svcctl(
            "install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--conf-dir", str(conf_dir),
            "--datastore", "orch", "--netconf", str(entry), "--service-account", str(_account(folder, kube)),
        )  # fmt: skip
    return conf_dir


def revoke_rights(kube: Kube) -> None:
    """Remove the rights that `install` gave to the plugin's account: later tests on the server want it to have none."""
    for each in _rights():
        kube.call("DELETE", f"/apis/{each['apiVersion']}/{each['kind'].lower()}s/{each['metadata']['name']}")


def _account(folder: Path, kube: Kube) -> Path:
    account = folder / "account"
    account.mkdir(exist_ok=True)
    (account / "token").write_text("token-of-plugin")
    (account / "ca.crt").write_bytes(kube.authority.read_bytes())
    return account


def _rights() -> list[Json]:
    rights = role(DEFAULT, DEFAULT.crd_api_version)
    api = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{api}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "plugin"},
        "subjects": [{"kind": "User", "name": "plugin", "apiGroup": api}],
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": rights["metadata"]["name"]},
    }  # fmt: skip
    return [rights, binding]
