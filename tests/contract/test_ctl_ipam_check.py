"""svcctl ipam check on every datastore: output, exit status, and the report."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.datastores import Site, session
from harness.ipam import put_pool
from harness.ipam_check import NODE, add, attributes, clear
from harness.node import netconf
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.svcctl import Cli, cli_on
from svc import __version__
from svc.admin.resources import CLUSTER
from svc.ctl.commands import ipam_check
from svc.datastore.api import Backend
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService

pytestmark = ON_EACH_DATASTORE

WEB, LEAKED = "10.65.0.0", "10.65.0.1"


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    """Give the pod `web` an address and an endpoint."""
    with session(site) as store:
        put_pool(store, "pool4", "10.65.0.0/28", blockSize=30)
        site.add_node(NODE)
        site.add_pod("web")
        add(site, store, IpamService(store, NODE), "web", "c1")
        yield store
    clear(site)


@pytest.fixture
def cli(site: Site, home: Path, store: Backend, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr(ipam_check, "sleep", lambda _seconds: None)
    cli = cli_on(site, home)
    cli.changes("clusterinfo", "init")
    return cli


def leak(store: Backend) -> None:
    (address,) = IpamService(store, NODE).assign(Assign("net.c9", attributes("gone"))).addresses
    assert str(address) == LEAKED


def found(cli: Cli, *arguments: str) -> str:
    """Return the output of a check with findings."""
    result = cli("ipam", "check", *arguments)
    assert result.exit_code == 3, result.output
    return result.stdout


def test_check_of_a_consistent_store_succeeds(cli: Cli) -> None:
    summary = "0 findings in 1 blocks with 1 addresses: 1 in use, 0 in cooldown, 0 unverifiable\n"
    assert cli.prints("ipam", "check") == summary


def test_findings_are_listed_with_their_fixes(cli: Cli, store: Backend) -> None:
    leak(store)
    heading, row, _, fix, _, summary = found(cli).splitlines()
    assert heading.split() == ["ID", "OBJECT", "NODE", "SINCE", "PROBLEM"]
    assert row.split()[:4] == ["leaked", LEAKED, NODE, "2026-01-02T03:04:05Z"]
    assert fix.startswith(f"Fix leaked {LEAKED}: svcctl ipam release --ip {LEAKED} --handle net.c9 --sequence ")
    assert summary == "1 findings in 1 blocks with 2 addresses: 1 in use, 0 in cooldown, 0 unverifiable"


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_findings_are_given_to_programs(cli: Cli, store: Backend, form: str, read: Any) -> None:
    leak(store)
    data = read(found(cli, "-o", form))
    (document,) = data if isinstance(data, list) else [data]
    (finding,) = document["findings"]
    assert {name: finding[name] for name in ("id", "object", "addresses", "node", "since")} == {
        "id": "leaked", "object": LEAKED, "addresses": [LEAKED], "node": NODE, "since": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    assert document["summary"]["findings"] == 1
    assert document["summary"]["allocations"] == 2


def test_check_can_leave_out_what_must_be_seen_twice(cli: Cli, store: Backend) -> None:
    leak(store)
    printed = cli.prints("ipam", "check", "--no-wait")
    assert printed.splitlines()[-1] == "seen once only: 1 leaked"


def test_waiting_is_announced(cli: Cli, store: Backend) -> None:
    leak(store)
    assert cli("ipam", "check").stderr == "waiting 5 s, to see again what a call in flight may explain: 1 leaked\n"


def test_report_has_the_fields_of_calico_and_the_findings(cli: Cli, store: Backend, tmp_path: Path) -> None:
    leak(store)
    IpamService(store, NODE).assign(Assign("net.c8", {"node": NODE}))
    file = tmp_path / "report.json"
    assert found(cli, "--report", str(file)).splitlines()[-1] == f"report: {file}"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    data = json.loads(file.read_text())
    entry = store.get(CLUSTER)
    head = {
        "version": __version__, "clusterGUID": entry.value.spec["clusterGUID"], "datastoreLocked": False,
        "clusterInformationRevision": entry.revision, "clusterType": entry.value.spec.get("clusterType", ""),
    }  # fmt: skip
    assert head.items() <= data.items()
    assert [finding["id"] for finding in data["findings"]] == ["leaked"]
    used, leaked, bare = (data["allocations"][address][0] for address in (WEB, LEAKED, "10.65.0.2"))
    assert used | {"sequenceNumber": 0} == {
        "ip": WEB, "handle": "net.c1", "sequenceNumber": 0, "pod": "web", "namespace": "default", "node": NODE, "type": "",
        "creationTimestamp": "2026-01-02T03:04:05Z", "inUse": True, "borrowed": False, "owners": ["endpoint of default/web"],
    }  # fmt: skip
    assert (leaked["inUse"], leaked["owners"], "unverifiable" in leaked) == (False, None, False)
    assert (bare["inUse"], bare["owners"], bare["unverifiable"]) == (True, None, True)


def test_report_of_a_leak_seen_once_keeps_it_in_use(cli: Cli, store: Backend, tmp_path: Path) -> None:
    leak(store)
    cli.prints("ipam", "check", "--no-wait", "--report", str(tmp_path / "report.json"))
    data = json.loads((tmp_path / "report.json").read_text())
    leaked = data["allocations"][LEAKED][0]
    assert (leaked["inUse"], leaked["unverifiable"], data["findings"]) == (True, True, [])


def test_report_that_cannot_be_written_is_refused_at_once(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    for path, problem in (
        (tmp_path, "is a directory: name a file in it"),
        (tmp_path / "missing" / "file", f"directory '{tmp_path / 'missing'}' does not exist: create it first"),
    ):
        assert problem in cli.fails("ipam", "check", "--report", str(path))
    assert "is empty: give a path" in cli.fails("ipam", "check", "--report", "", code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


def test_report_replaces_regular_files_only(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a pipe nor a link is replaced, nor the target of a link, and no file is called `-`."""
    kept, link, dangling, pipe = (tmp_path / name for name in ("kept", "link", "dangling", "pipe"))
    kept.write_text("kept")
    link.symlink_to(kept)
    dangling.symlink_to(tmp_path / "missing")
    os.mkfifo(pipe)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ipam_check, "check", None)  # it does not begin
    for name, problem in (
        (str(pipe), "is a named pipe: name a regular file, or a new one"),
        (str(link), "is a symbolic link: name the file itself, or remove the link"),
        (str(dangling), "is a symbolic link"),
        ("-", "is not the name of a file: name a file: this cannot go to standard output"),
    ):
        assert f"--report {name!r} {problem}" in cli.fails("ipam", "check", "--report", name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "kept", "link", "pipe"]
    assert (link.is_symlink(), dangling.is_symlink(), pipe.is_fifo(), kept.read_text()) == (True, True, True, "kept")


def test_report_replaces_a_regular_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")
    cli.prints("ipam", "check", "--report", str(file))
    assert json.loads(file.read_text())["findings"] == []


def test_check_without_its_datastore_fails(cli: Cli, site: Site, home: Path, tmp_path: Path) -> None:
    """Its exit status tells that it does not know."""
    elsewhere: dict[str, dict[str, Any]] = {
        "etcdv3": {"datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1"},
        "orch": {"datastore_type": "orch", "orch": {"orch_api_root": "http://127.0.0.1:1"}},
    }
    config = elsewhere.get(site.config["datastore_type"])
    if config is None:
        assert "does not exist" in Cli(tmp_path, fresh=False).fails("ipam", "check")
        return
    file = home / "elsewhere.json"
    file.write_text(json.dumps(netconf(**config)))
    assert "127.0.0.1:1" in Cli(home, "--netconf", str(file)).fails("ipam", "check")
