"""Imports at the start of an agent: only the large packages that its networks and attachments need."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from svc.attach.journal import Journal
from svc.attach.record import ADDED, AttachmentId, Record
from svc.netconf.installed import Installed, add_installed

EMBEDDED: dict[str, Any] = {"type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
ETCD = EMBEDDED | {"datastore_type": "etcdv3"}
KUBECONFIG = {"orch": {"kubeconfig": "/nonexistent"}}
LARGE = ("grpc", "etcd3.etcdrpc", "kubernetes", "ssl", "dns.resolver")

PROGRAM = """
import sys
from pathlib import Path
from svc.agent import server
from svc.agent.preload import preload
from svc.attach.journal import Journal
journal = Journal(Path(sys.argv[1]) / "journal.db")
preload(Path(sys.argv[1]), journal)
print(*sys.modules)
"""


def preloaded(state_dir: Path) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(state_dir)], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def install(state_dir: Path, *entries: dict[str, Any]) -> None:
    for number, entry in enumerate(entries):
        path = state_dir / f"{number}.conflist"
        state_dir.mkdir(exist_ok=True)
        path.write_text(json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": [entry]}))
        add_installed(state_dir, Installed("", f"/bin{number}", (), str(path)))


@pytest.mark.parametrize(
    ("entries", "large"),
    [
        ([], set()),
        ([EMBEDDED], set()),
        ([ETCD], {"grpc", "etcd3.etcdrpc"}),
        ([ETCD | {"etcd_discovery_srv": "example.org"}], {"grpc", "etcd3.etcdrpc", "dns.resolver"}),
        ([EMBEDDED | KUBECONFIG | {"datastore_type": "orch"}], {"ssl"}),
        ([EMBEDDED | KUBECONFIG | {"policy": {"type": "k8s"}}], {"ssl"}),
        ([EMBEDDED | {"readiness_gates": ["https://127.0.0.1/ready"]}], {"ssl"}),
        ([EMBEDDED, ETCD], {"grpc", "etcd3.etcdrpc"}),
    ],
    ids=["nothing", "embedded", "etcd", "srv", "orch", "policy", "https", "two"],
)
def test_large_packages_are_imported_only_for_networks_that_need_them(
    tmp_path: Path, entries: list[dict[str, Any]], large: set[str]
) -> None:
    install(tmp_path / "state", *entries)
    found = preloaded(tmp_path / "state")
    assert large <= found
    assert not (set(LARGE) - large - {"ssl"}) & found
    assert {"svc.waits.gates", "svc.waits.policy", "svc.attach.sources.delegated", "svc.netconf.annotations"} <= found


@pytest.mark.parametrize(("user", "needed"), [({"token": "t"}, False), ({"exec": {"command": "x"}}, True)])
@pytest.mark.parametrize("more", [{"datastore_type": "orch"}, {"policy": {"type": "k8s"}}], ids=["orch", "policy"])
def test_client_is_imported_only_for_a_kubeconfig_that_needs_it(
    tmp_path: Path, more: dict[str, Any], user: dict[str, Any], needed: bool
) -> None:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(content))
    install(tmp_path / "state", EMBEDDED | {"orch": {"kubeconfig": str(tmp_path / "kubeconfig")}} | more)
    assert ("kubernetes" in preloaded(tmp_path / "state")) == needed


def test_store_of_an_attachment_is_imported(tmp_path: Path) -> None:
    """Its network may no longer be installed."""
    journal = Journal(tmp_path / "journal.db")
    with closing(journal):
        journal.begin(
            Record(AttachmentId("net", "c1", "eth0"), ADDED, "boot", (1, 2), "node", {"kind": "etcdv3"}, "svc0", "mac")
        )
    assert "svc.datastore.etcd.store" in preloaded(tmp_path)


def test_unreadable_network_is_ignored(tmp_path: Path) -> None:
    install(tmp_path / "state", ETCD)
    add_installed(tmp_path / "state", Installed("", "/bin9", (), "/nonexistent/list"))
    assert "grpc" in preloaded(tmp_path / "state")
    (tmp_path / "state/installed.json").write_text("{")
    assert "svc.waits.gates" in preloaded(tmp_path / "state")
