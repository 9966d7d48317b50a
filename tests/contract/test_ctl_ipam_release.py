"""svcctl ipam release on every datastore: it releases what nothing uses, and refuses everything else."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.audit import IpamAudit
from harness.datastores import EtcdSite, Site, session, set_ready
from harness.ipam import block_of, put, put_pool
from harness.ipam_check import NODE, add, attributes, clear, ids, place, put_endpoint, spoil
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.skips import OTHER_STORES
from harness.svcctl import Cli, cli_on
from svc._core.cidr import Address, Cidr
from svc.admin.ipam_check import living_agents, saved_report
from svc.admin.ipam_check.release import carry_out
from svc.ctl.commands import ipam_check, ipam_release
from svc.datastore.api import Backend
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.ipam import Handle
from svc.model.keys import BlockKey, HandleKey
from svc.timestamps import to_nanoseconds

pytestmark = ON_EACH_DATASTORE

WEB, LEAKED = "10.65.0.0", "10.65.0.1"
RUNNING, BOTH = {WEB: "net.c1"}, {WEB: "net.c1", LEAKED: "net.c9"}  # allocated addresses with their handles


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    """Give the pod `web` an address and an endpoint. Another address and a handle are leaked."""
    with session(site) as store:
        put_pool(store, "pool4", "10.65.0.0/28", blockSize=30)
        site.add_node(NODE)
        site.add_pod("web")
        ipam = IpamService(store, NODE)
        add(site, store, ipam, "web", "c1")
        ipam.assign(Assign("net.c9", attributes("gone")))
        put(store, HandleKey("net.lost"), Handle({"10.65.0.0/30": 1}))
        yield store
    clear(site)


@pytest.fixture
def cli(site: Site, home: Path, store: Backend, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr(ipam_check, "sleep", lambda _seconds: None)
    monkeypatch.setattr(ipam_release, "node_name", lambda *_: NODE)  # without a journal, no machine knows its name
    cli = cli_on(site, home)
    cli.changes("clusterinfo", "init")
    return cli


@pytest.fixture
def report(cli: Cli, tmp_path: Path) -> Path:
    """Make a report of the locked datastore, with a leaked address and an empty handle."""
    cli.changes("clusterinfo", "lock")
    return make_report(cli, tmp_path / "report.json")


def allocated(store: Backend) -> dict[str, str]:
    """Return the allocated addresses with their handles."""
    return IpamAudit.read(store).allocations


def make_report(cli: Cli, path: Path) -> Path:
    assert cli("ipam", "check", "--report", str(path)).exit_code == 3
    return path


def edit(path: Path, **members: Any) -> str:
    """Change members of a report, and return its path."""
    path.write_text(json.dumps(json.loads(path.read_text()) | members))
    return str(path)


def edit_leak(path: Path, **fields: Any) -> str:
    """Change fields of the leaked address in a report, and return its path."""
    allocations = json.loads(path.read_text())["allocations"]
    allocations[LEAKED][0] |= fields
    return edit(path, allocations=allocations)


def refused(cli: Cli, *arguments: str) -> str:
    """Return the output of a release that refuses something."""
    result = cli("ipam", "release", *arguments)
    assert result.exit_code == 1, result.output
    return result.stdout


# single addresses


def test_leaked_address_is_released(cli: Cli, store: Backend) -> None:
    """The fix of the finding is the command."""
    (fix,) = [line for line in cli("ipam", "check").stdout.splitlines() if line.startswith("Fix leaked")]
    arguments = fix.partition(": svcctl ")[2].split()
    assert cli.changes(*arguments, "--yes") == f"{LEAKED} released\n1 released\n"
    assert allocated(store) == RUNNING
    assert cli.changes(*arguments) == f"{LEAKED} already free\n1 already free\n"


def test_leaked_address_of_another_node_needs_force(
    site: Site, cli: Cli, store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator may have deleted the endpoint of a live pod. Only its node can tell, also if its agent has ended."""
    if not isinstance(site, EtcdSite):
        pytest.skip(f"{OTHER_STORES}the pod is the endpoint, or the store has one node")
    monkeypatch.setattr(living_agents, "WATCH_SECONDS", 0.5)
    monkeypatch.setattr(ipam_release, "node_name", lambda *_: "desk")
    printed = refused(cli, "--ip", LEAKED, "--yes")
    assert f"Repeat this on node '{NODE}', which can tell; with --force if that machine is gone for good" in printed
    assert allocated(store) == BOTH
    assert cli.changes("ipam", "release", "--ip", LEAKED, "--yes", "--force") == f"{LEAKED} released\n1 released\n"


def test_dry_run_and_an_answer_of_no_release_nothing(cli: Cli, store: Backend) -> None:
    printed = cli.prints("ipam", "release", "--ip", LEAKED, "--dry-run")
    assert printed.startswith(f"{LEAKED} unused: pod default/gone ")
    result = cli("ipam", "release", "--ip", LEAKED, stdin="n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert allocated(store) == BOTH
    result = cli("ipam", "release", "--ip", LEAKED, stdin="y\n")
    assert result.stdout.startswith(f"{LEAKED} released\n1 released\n"), result.output


@pytest.mark.parametrize("options", [(), ("--force",), ("--force", "--handle", "net.c1")], ids=" ".join)
def test_address_in_use_is_refused(cli: Cli, store: Backend, options: tuple[str, ...]) -> None:
    """`--force` accepts other versions, no lock and missing nodes, but not that."""
    printed = refused(cli, "--ip", WEB, "--yes", *options)
    assert printed.startswith(f"{WEB} refused: endpoint of default/web has it: end that first\n1 refused\n")
    assert allocated(store) == BOTH


def test_each_outcome_is_printed_before_the_next_release(cli: Cli, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the progress of a long release. The last line has the totals."""
    printed: list[str] = []
    monkeypatch.setattr(ipam_release, "echo", lambda text, **_: printed.append(text))
    after: list[list[str]] = []

    def watched(*arguments: Any) -> Iterator[Any]:
        for outcome in carry_out(*arguments):
            yield outcome
            after.append(printed.copy())

    monkeypatch.setattr(ipam_release, "carry_out", watched)
    result = cli("ipam", "release", "--from-report", str(report), "--yes")
    assert after == [[f"{LEAKED} released"], [f"{LEAKED} released", "handle net.lost deleted"]], result.output
    assert result.stdout.startswith("1 released, 1 deleted\n")


def test_other_allocation_of_the_address_is_refused(cli: Cli, store: Backend) -> None:
    sequence = block_of(store, LEAKED).ordinal_sequences[1]
    printed = refused(cli, "--ip", LEAKED, "--handle", "net.c8", "--yes")
    assert "it is allocated to net.c9, not to net.c8" in printed
    printed = refused(cli, "--ip", LEAKED, "--sequence", str(sequence + 1), "--yes")
    assert f"its sequence number is {sequence}, not {sequence + 1}" in printed
    assert allocated(store) == BOTH


def test_unverifiable_address_is_refused(cli: Cli, store: Backend) -> None:
    (bare,) = IpamService(store, NODE).assign(Assign("net.c8", {"node": NODE})).addresses
    assert f"only the agent of node {NODE!r} can tell" in refused(cli, "--ip", str(bare), "--yes")
    assert allocated(store)[str(bare)] == "net.c8"


def test_address_of_an_add_in_flight_is_refused(cli: Cli, store: Backend) -> None:
    owner = attributes("soon") | {"timestamp": to_nanoseconds(time.time_ns())}
    (young,) = IpamService(store, NODE).assign(Assign("net.c8", owner)).addresses
    assert "less than a minute ago" in refused(cli, "--ip", str(young), "--yes")


def test_address_without_a_time_is_released_by_its_number(cli: Cli, store: Backend) -> None:
    """Without the number of a finding, nothing shows that no ADD is in flight."""
    owner = {name: text for name, text in attributes("soon").items() if name != "timestamp"}
    (address,) = IpamService(store, NODE).assign(Assign("net.c8", owner)).addresses
    assert "give the --sequence that `svcctl ipam check` shows" in refused(cli, "--ip", str(address), "--yes")
    sequence = block_of(store, str(address)).ordinal_sequences[2]
    printed = cli.changes("ipam", "release", "--ip", str(address), "--sequence", str(sequence), "--yes")
    assert printed == f"{address} released\n1 released\n"


def test_address_that_is_taken_during_the_question_stays(
    cli: Cli, site: Site, store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: Any, **__: Any) -> bool:
        site.add_pod("gone")
        put_endpoint(site, store, "gone", "c9", LEAKED)
        return True

    monkeypatch.setattr("click.confirm", confirm)
    printed = refused(cli, "--ip", LEAKED)
    assert printed.startswith(f"{LEAKED} refused: endpoint of default/gone has it")
    assert allocated(store) == BOTH


def test_address_that_is_assigned_again_during_the_question_stays(
    cli: Cli, store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has agreed to release another allocation, although nothing uses this one either."""

    def confirm(*_: Any, **__: Any) -> bool:
        ipam = IpamService(store, NODE)
        ipam.release(Release("net.c9"))
        ipam.assign(Assign("net.c9", attributes("gone"), addresses=(Address(LEAKED),)))
        return True

    monkeypatch.setattr("click.confirm", confirm)
    assert refused(cli, "--ip", LEAKED).startswith(f"{LEAKED} refused: it was allocated again")
    assert allocated(store) == BOTH


def test_address_without_a_block_is_free_unless_its_block_cannot_be_read(cli: Cli, site: Site, store: Backend) -> None:
    unused = "10.65.0.15"
    assert cli.changes("ipam", "release", "--ip", unused) == f"{unused} already free: no block has it\n1 already free\n"
    spoil(site, BlockKey(Cidr("10.65.0.0/30")), {"allocations": [7, None, None, None]})
    assert refused(cli, "--ip", LEAKED, "--yes").startswith(f"{LEAKED} refused: its block cannot be read\n")


def test_address_of_no_pool_is_refused(cli: Cli) -> None:
    """It is mistyped. One whose handle is known was in a pool that was deleted."""
    answer = refused(cli, "--ip", "192.0.2.1").splitlines()[0]
    assert answer.startswith("192.0.2.1 refused: no pool and no block has it: the pools are pool4 10.65.0.0/28")
    assert "192.0.2.1 already free" in cli.changes("ipam", "release", "--ip", "192.0.2.1", "--handle", "net.c1")


def test_report_is_read_from_standard_input(cli: Cli, store: Backend, report: Path) -> None:
    """A question cannot be answered there."""
    words = ("ipam", "release", "--from-report", "-", "--force")
    assert "reads standard input: give it once, and with it --yes" in cli.fails(*words, stdin=report.read_text(), code=2)
    assert "on standard input is not JSON" in cli.fails(*words, "--yes", stdin="")
    cli.changes(*words, "--yes", stdin=report.read_text())
    assert LEAKED not in allocated(store)


def test_options_that_do_not_go_together_are_refused(cli: Cli, tmp_path: Path) -> None:
    for arguments, problem in (
        ((), "give one of --ip ADDRESS, --from-report FILE and --acknowledge"),
        (("--ip", WEB, "--from-report", "x"), "give one of --ip ADDRESS, --from-report FILE and --acknowledge"),
        (("--from-report", "x", "--handle", "h"), "--handle and --sequence go with --ip"),
        (("--ip", "10.65.0"), "10.65.0"),
        (("--ip", f"::ffff:{LEAKED}"), f"'::ffff:{LEAKED}' is IPv4-mapped: give {LEAKED}"),
        (("--ip", "::ffff:a41:1"), f"'::ffff:a41:1' is IPv4-mapped: give {LEAKED}"),
    ):
        assert problem in cli.fails("ipam", "release", *arguments, code=2)


# reports


def test_release_mends_what_the_report_shows(cli: Cli, site: Site, store: Backend, report: Path) -> None:
    lines = cli.changes("ipam", "release", "--from-report", str(report), "--yes").splitlines()
    assert lines == [f"{LEAKED} released", "handle net.lost deleted", "1 released, 1 deleted"]
    assert ids(place(site, store)) == []
    assert allocated(store) == RUNNING
    assert cli.changes("clusterinfo", "unlock") == "unlocked\n"


def test_output_is_given_to_programs(cli: Cli, report: Path) -> None:
    found = json.loads(cli.prints("ipam", "release", "--from-report", str(report), "--yes", "-o", "json"))
    assert found == [
        {"object": LEAKED, "result": "released", "reason": ""},
        {"object": "handle net.lost", "result": "deleted", "reason": ""},
    ]


def test_only_what_all_reports_show_is_released(cli: Cli, store: Backend, report: Path, tmp_path: Path) -> None:
    """The handle was changed, and the address assigned again, between the reports."""
    ipam = IpamService(store, NODE)
    ipam.release(Release("net.c9"))
    ipam.assign(Assign("net.c9", attributes("gone"), addresses=(Address(LEAKED),)))
    put(store, HandleKey("net.lost"), Handle({"10.65.0.0/30": 2}))
    later = make_report(cli, tmp_path / "later.json")
    both = ("--from-report", str(report), "--from-report", str(later))
    assert cli.changes("ipam", "release", *both, "--yes") == "nothing to release\n"
    assert allocated(store) == BOTH


def test_address_that_was_assigned_since_is_refused(cli: Cli, site: Site, store: Backend, report: Path) -> None:
    """Also if its new owner is the same pod. The handle was changed as well."""
    ipam = IpamService(store, NODE)
    ipam.release(Release("net.c9"))
    ipam.assign(Assign("net.c9", attributes("gone"), addresses=(Address(LEAKED),)))
    put(store, HandleKey("net.lost"), Handle({"10.65.0.0/30": 2}))
    first, second, total = refused(cli, "--from-report", str(report), "--yes", "--force").splitlines()[:3]
    assert first.startswith(f"{LEAKED} refused: it was allocated again")
    assert second.startswith("handle net.lost refused: it was changed since")
    assert total == "2 refused"


def test_report_edited_by_hand_does_not_release_an_address_in_use(cli: Cli, store: Backend, report: Path) -> None:
    allocations = json.loads(report.read_text())["allocations"]
    allocations[WEB][0]["inUse"] = False
    edit(report, allocations=allocations)
    printed = refused(cli, "--from-report", str(report), "--yes", "--force")
    assert f"{WEB} refused: endpoint of default/web has it" in printed
    assert allocated(store) == RUNNING


def test_address_that_is_in_use_since_the_report_is_refused(cli: Cli, site: Site, store: Backend, report: Path) -> None:
    site.add_pod("gone")
    put_endpoint(site, store, "gone", "c9", LEAKED)
    printed = refused(cli, "--from-report", str(report), "--yes", "--force")
    assert f"{LEAKED} refused: endpoint of default/gone has it" in printed
    assert allocated(store) == BOTH


def test_report_of_another_cluster_is_refused_also_with_force(cli: Cli, store: Backend, report: Path) -> None:
    edit(report, clusterGUID="other")
    for options in ((), ("--force",)):
        printed = cli.fails("ipam", "release", "--from-report", str(report), "--yes", *options)
        assert f"report {str(report)!r} is of cluster 'other', and the datastore is of '" in printed
    assert allocated(store) == BOTH


def test_version_and_lock_can_be_overridden(cli: Cli, store: Backend, report: Path) -> None:
    edit(report, version="0.0.9")
    cli.changes("clusterinfo", "unlock")
    printed = cli.fails("ipam", "release", "--from-report", str(report), "--yes")
    assert "was made by version '0.0.9'" in printed
    assert "the datastore is not locked" in printed
    assert "--force" in printed
    cli.changes("clusterinfo", "lock")
    edit(report, version=json.loads(make_report(cli, report.with_name("new.json")).read_text())["version"])
    assert "was unlocked since every report" in cli.fails("ipam", "release", "--from-report", str(report), "--yes")
    assert cli.changes("ipam", "release", "--from-report", str(report), "--yes", "--force").endswith("1 released, 1 deleted\n")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sequenceNumber": "7"}, "allocations.10.65.0.1[0].sequenceNumber = '7' is a string, not a whole number of 0 or more"),
        ({"ip": "10.65.0.7"}, "allocations.10.65.0.1[0].ip = '10.65.0.7' is not the address of this entry"),
        ({"inUse": "no"}, "allocations.10.65.0.1[0].inUse = 'no' is a string, not a boolean"),
    ],
)
def test_fields_of_a_report_are_checked(cli: Cli, store: Backend, report: Path, fields: dict[str, Any], problem: str) -> None:
    edit_leak(report, **fields)
    assert problem in cli.fails("ipam", "release", "--from-report", str(report), "--yes", "--force")
    assert allocated(store) == BOTH


def test_mapped_address_of_a_report_is_refused(cli: Cli, store: Backend, report: Path) -> None:
    mapped = f"::ffff:{LEAKED}"
    allocations = json.loads(report.read_text())["allocations"]
    edit(report, allocations={mapped: [allocations[LEAKED][0] | {"ip": mapped}]})
    printed = cli.fails("ipam", "release", "--from-report", str(report), "--yes", "--force")
    assert f"ip = '{mapped}' is IPv4-mapped: give {LEAKED}" in printed
    assert allocated(store) == BOTH


def test_files_that_are_not_reports_are_refused(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for text, problem in (("{", "is not JSON"), ("[]", "is an array, not an object"), ("{}", "allocations is missing")):
        file.write_text(text)
        assert problem in cli.fails("ipam", "release", "--from-report", str(file), "--yes")
    with file.open("wb") as large:
        large.truncate(200 * 2**20)
    assert "has 209715200 bytes, more than 67108864" in cli.fails("ipam", "release", "--from-report", str(file))
    assert "cannot be read: No such file" in cli.fails("ipam", "release", "--from-report", str(tmp_path / "missing"))


def test_report_without_a_size_is_read_up_to_the_limit(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has no size."""
    monkeypatch.setattr(saved_report, "MAX_BYTES", 1000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with suppress(BrokenPipeError), pipe.open("wb", buffering=0) as long:
            long.write(bytes(200_000))

    writer = threading.Thread(target=write)
    writer.start()
    printed = cli.fails("ipam", "release", "--from-report", str(pipe))
    writer.join()
    assert f"report {str(pipe)!r} has more than 1000 bytes: make another one" in printed


def test_datastore_without_an_id_takes_no_report(site: Site, cli: Cli, report: Path) -> None:
    with session(site) as store:
        set_ready(store, ready=False)
    assert "the datastore has no cluster ID" in cli.fails("ipam", "release", "--from-report", str(report), "--force")
