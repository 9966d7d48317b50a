"""Rules of svc-routes without kernel and datastore: deletions, retries, modes, options, reports and the MTU file."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc._core import rtnl
from svc._core.bitmap import Ordinals
from svc._core.cidr import Address, Cidr
from svc.atomic_file import File, write
from svc.metrics import StoreMeter
from svc.model.errors import CallerError
from svc.model.ipam import Attribute, Block
from svc.model.resource import Resource
from svc.names import DEFAULT
from svc.routes import mtu_file, trace_file
from svc.routes.applied import Applied, Failure, Foreign
from svc.routes.inputs import Inputs, borrowed_addresses, node_facts, routed_pool
from svc.routes.interfaces import Interface
from svc.routes.kernel_routes import key_of
from svc.routes.local import addresses_of_node, local_of, pod_mtu, underlay_problems
from svc.routes.mode import Mode
from svc.routes.mtu_file import remove_mtu, write_mtu
from svc.routes.planning import Row
from svc.routes.reasons import Reason
from svc.routes.report import IDLE, STATES, WORKING, Report, as_table
from svc.routes.safety import DeletionGuard, Refusals
from svc.routes.settings import Settings, parse, settings_of
from svc.routes.telemetry import Telemetry
from svc.routes.traces import of_routes
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6, Blackhole, Direct, Way

NETWORK = Cidr("10.0.0.0/26")
VIA, ELSEWHERE = Direct(Address("192.168.0.2")), Direct(Address("192.168.0.3"))
SVC_ADDRESS = {"address": "10.1.1.1/24", "type": "SvcNodeIP"}
REFUSED = Failure(101, "Network is unreachable")


@pytest.mark.parametrize(("own", "doomed", "allowed"), [(100, 9, True), (100, 20, True), (100, 21, False), (12, 10, False)])
def test_large_deletions_wait(own: int, doomed: int, allowed: bool) -> None:
    guard = DeletionGuard()
    assert guard.allows(own, doomed, 1000.0) == allowed
    assert guard.held == (0 if allowed else doomed)
    assert guard.allows(own, doomed, 1599.0) == allowed
    assert guard.allows(own, doomed, 1600.0)


def test_a_hold_begins_again_after_the_routes_are_back() -> None:
    guard = DeletionGuard()
    assert not guard.allows(100, 50, 0.0)
    assert guard.allows(100, 0, 10.0)
    assert not guard.allows(100, 50, 650.0)


def test_a_refused_route_waits_longer_each_time() -> None:
    refusals, wanted = Refusals(), {NETWORK: VIA}
    delays = []
    now = 0.0
    for _ in range(8):
        assert refusals.due_routes(wanted, now) == wanted
        refusals.record(wanted, Applied(failures={NETWORK: REFUSED}), now)
        assert refusals.due_routes(wanted, now) == {}
        assert refusals.next_due is not None
        delays.append(refusals.next_due - now)
        now = refusals.next_due
    assert 0.7 <= delays[0] <= 1.0
    assert 45.0 <= delays[-1] <= 60.0
    refusals.record(wanted, Applied({NETWORK: VIA}), now)
    assert (refusals.failures, refusals.next_due) == ({}, None)


def test_a_new_way_is_tried_at_once() -> None:
    refusals = Refusals()
    refusals.record({NETWORK: VIA}, Applied(failures={NETWORK: REFUSED}), 0.0)
    assert refusals.due_routes({NETWORK: VIA}, 0.1) == {}
    assert refusals.due_routes({NETWORK: ELSEWHERE}, 0.1) == {NETWORK: ELSEWHERE}


def test_auto_works_after_five_quiet_minutes() -> None:
    mode = Mode("auto")
    assert mode.is_check_due(0.0)
    mode.record(("a device",), 0.0)
    assert not mode.works(0.0)
    assert not mode.is_check_due(59.0)
    for now in (60.0, 120.0, 180.0, 240.0):
        mode.record((), now)
        assert not mode.works(now)
    mode.record((), 300.0)
    assert mode.works(300.0)


def test_auto_works_at_once_without_a_trace() -> None:
    mode = Mode("auto")
    mode.record((), 0.0)
    assert mode.works(0.0)
    assert Mode("on").works(0.0)
    assert not Mode("off").works(0.0)


def test_auto_waits_if_an_earlier_process_has_found_a_trace() -> None:
    """The text says that the trace is not there any more."""
    mode = Mode("auto", ("a device",), 1000.0)
    mode.record((), 1000.0)
    assert not mode.works(1299.0)
    assert mode.reasons == ("not found any more: a device",)
    assert mode.idle_seconds(1060.0) == 60.0
    assert mode.works(1300.0)
    assert mode.idle_seconds(1300.0) == 0.0
    assert Mode("on", ("a device",), 1000.0).works(1000.0)


def test_traces_survive_the_process(tmp_path: Path) -> None:
    """An unwritable folder does not stop the program, which finds the traces again."""
    assert trace_file.read(tmp_path) == ()
    trace_file.note(tmp_path, ("a device", "a route"))
    assert trace_file.read(tmp_path) == ("a device", "a route")
    trace_file.remove(tmp_path)
    trace_file.remove(tmp_path)
    assert trace_file.read(tmp_path) == ()
    trace_file.note(tmp_path / "missing", ("a device",))


def test_options_have_an_order(tmp_path: Path) -> None:
    """Command line, environment, file."""
    config = tmp_path / "routes.toml"
    config.write_text('mode = "on"\nmtu = "1400"\nnat = "off"\n')
    found = parse(["run", "--config", str(config), "--mtu", "1300"], {"SVC_ROUTES_MODE": "auto", "SVC_ROUTES_MTU": "1350"})
    assert (found.mode, found.mtu, found.nat, found.tunnels) == ("auto", 1300, "off", "on")
    assert parse(["run"], {}).mode == "off"
    assert [parse(["run", *given], {}).once for given in ([], ["--once"])] == ["off", "on"]
    assert parse(["run"], {"SVC_ROUTES_ONCE": "on"}).once == "on"
    assert parse(["show"], {"SVC_ROUTES_MODE": "auto", "SVC_ROUTES_RUN_DIR": "/x"}).run_dir == Path("/x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode = 1", "write it in quotes"),
        ("other = 'x'", "is not an option"),
        ("[", "is not TOML"),
        ("mode = 'x'", "choose from"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "routes.toml"
    config.write_text(text)
    with pytest.raises(SystemExit):
        parse(["run", "--config", str(config)], {})
    assert words in capsys.readouterr().err


def test_an_embedded_store_is_refused(tmp_path: Path) -> None:
    netconf = tmp_path / "netconf.json"
    document = {"name": "n", "cniVersion": "1.0.0", "type": "svc", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
    netconf.write_text(json.dumps(document))
    options = parse(["run", "--netconf", str(netconf)], {})
    with pytest.raises(CallerError, match="the store of one node, which needs no routes"):
        settings_of(options, {})


@pytest.mark.parametrize(("given", "folder"), [([], "/var/lib/calico"), (["--state-dir", "/x"], "/x")])
def test_the_mtu_file_is_where_calls_look_for_it(tmp_path: Path, given: list[str], folder: str) -> None:
    """The names profile says where, unless the option does."""
    netconf = tmp_path / "netconf.json"
    document = {"name": "n", "cniVersion": "1.0.0", "type": "calico", "datastore_type": "etcdv3", "nodename": "n"}
    netconf.write_text(json.dumps({**document, "etcd_endpoints": "http://127.0.0.1:2379", "ipam": {"type": "calico-ipam"}}))
    options = parse(["run", "--netconf", str(netconf), "--names", "calico", *given], {})
    assert settings_of(options, {}).state_dir == Path(folder)


def test_a_pod_that_comes_during_a_check_is_no_trace() -> None:
    """Its link was not there when the links were read."""
    route = {"type": rtnl.RTN_UNICAST, "protocol": 3, "gateway": b"", "metric": 0}
    links = {"eth0": {"index": 2, "kind": "", "mac": b"", "alias": ""}}
    key = key_of(NETWORK.address(1).host())
    for index, number in ((7, 0), (2, 1), (0, 1)):
        assert len(list(of_routes({key: [{**route, "index": index}]}, links, [NETWORK]))) == number, index


def test_a_missing_installation_is_named(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="give --netconf FILE"):
        settings_of(parse(["run", "--state-dir", str(tmp_path)], {}), {})


def report(
    row: Row, way: Way | None = None, *, foreign: Foreign | None = None, failures: dict[Cidr, Failure] | None = None
) -> Report:
    routes = {} if way is None else {NETWORK: way}
    applied = Applied(routes, foreign={} if foreign is None else {NETWORK: foreign})
    return Report(WORKING, {NETWORK: row}, applied, failures or {})


@pytest.mark.parametrize(
    ("found", "reason", "text"),
    [
        (report(Row("n", Reason.DIRECT, VIA), VIA), "DIRECT", Reason.DIRECT.value),
        (report(Row("n", Reason.DIRECT, VIA)), "NOT_YET", Reason.NOT_YET.value),
        (report(Row("n", Reason.DIRECT, VIA), failures={NETWORK: REFUSED}), "REFUSED", "Network is unreachable"),
        (report(Row("n", Reason.DIRECT, VIA), foreign=Foreign(12, "via 10.9.9.9")), "FOREIGN", "protocol 12, via 10.9.9.9"),
        (report(Row("n", Reason.NO_NODE)), "NO_NODE", Reason.NO_NODE.value),
    ],
)
def test_report_has_the_reason_of_the_kernel(found: Report, reason: str, text: str) -> None:
    (row,) = found.document()["networks"]
    assert (row["network"], row["node"], row["reason"]) == (str(NETWORK), "n", reason)
    assert text in row["text"]
    assert text in as_table(found.document())
    assert len(list(found.missing())) == (0 if reason == "DIRECT" else 1)


def test_metrics_can_be_written() -> None:
    telemetry = Telemetry("etcdv3", StoreMeter())
    telemetry.report = report(Row("n", Reason.OWN, Blackhole()), Blackhole())
    telemetry.applied(Applied(failures={NETWORK: REFUSED}), {NETWORK: VIA}, 0.07)
    text = telemetry.text()
    for line in (
        'svc_routes_state{state="working"} 1',
        'svc_routes{kind="blackhole"} 1',
        'svc_routes_failures_total{errno="ENETUNREACH"} 1',
        'svc_routes_seconds_bucket{le="0.1"} 1',
        "svc_routes_unreachable_nodes 0",
        "svc_routes_foreign 0",
    ):
        assert f"{line}\n" in text, text


def test_metrics_tell_of_foreign_routes_and_unreachable_nodes() -> None:
    """A node without a route to one of its networks is unreachable."""
    telemetry = Telemetry("etcdv3", StoreMeter())
    telemetry.report = report(Row("n", Reason.DIRECT, VIA), foreign=Foreign(12, "via 10.9.9.9"))
    text = telemetry.text()
    for line in ("svc_routes_foreign 1", "svc_routes_unreachable_nodes 1", 'svc_routes_without_way{reason="FOREIGN"} 1'):
        assert f"{line}\n" in text, text


@pytest.mark.parametrize(
    ("cidr", "mode", "mtu"),
    [("10.0.0.0/16", "vxlanMode", 1450), ("fd00::/64", "vxlanMode", 1430), ("10.0.0.0/16", "ipipMode", 1480)],
)
def test_pods_have_room_for_the_header_of_the_tunnel(cidr: str, mode: str, mtu: int) -> None:
    interfaces = (Interface("eth0", 1500, (Address("192.168.0.1"), Address("fd01::1"))),)
    inputs = Inputs(pools=(routed_pool(Resource("IPPool", {"name": "p"}, {"cidr": cidr, mode: "CrossSubnet"})),))
    own = {4: Address("192.168.0.1"), 6: Address("fd01::1")}
    assert pod_mtu(Settings({}, "n"), inputs, interfaces, own) == mtu


def test_every_reason_is_documented() -> None:
    """The page has a row for each reason that `show` prints, and for no other."""
    page = (Path(__file__).parents[2] / "docs" / "routes.md").read_text()
    rows = [line.split("`")[1] for line in page.partition("## Reasons")[2].partition("\n## ")[0].splitlines() if "| `" in line]
    assert sorted(rows) == sorted(reason.name for reason in Reason)


def test_every_state_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "routes.md").read_text()
    rows = [line.split("`")[1] for line in page.partition("## States")[2].partition("\n## ")[0].splitlines() if "| `" in line]
    assert sorted(rows) == sorted(STATES)


def test_the_report_counts_routes_that_remain() -> None:
    found = Report(IDLE, traces=("a device",), remaining=3).document()
    assert (found["routes"], found["remainingRoutes"], found["missing"]) == (0, 3, {})
    assert "3 own routes stay until the other program has routes there" in as_table(found)


def test_the_mtu_file_of_another_program_stays(tmp_path: Path) -> None:
    file = tmp_path / "mtu"
    assert write_mtu(tmp_path, 0) == ""
    assert not file.exists()
    assert write_mtu(tmp_path, 1450) == ""
    assert write_mtu(tmp_path, 1430) == ""
    assert file.read_text() == "1430\n"
    file.write_text("1400\n")
    assert write_mtu(tmp_path, 1450) == ""
    remove_mtu(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mtu"]
    assert file.read_text() == "1400\n"


def test_a_kill_between_mark_and_file_loses_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process knows the file as an own one."""
    write_mtu(tmp_path, 1450)
    for written in (1, 2):
        files = iter([None] * written)

        def write_some(file: File, files: Iterator[None] = files) -> None:
            next(files)
            write(file)

        monkeypatch.setattr(mtu_file, "write", write_some)
        with pytest.raises(StopIteration):
            write_mtu(tmp_path, 1430 - written)
        monkeypatch.undo()
        assert write_mtu(tmp_path, 1400) == ""
        assert (tmp_path / "mtu").read_text() == "1400\n"


def test_own_mtu_file_is_removed(tmp_path: Path) -> None:
    write_mtu(tmp_path, 1450)
    remove_mtu(tmp_path)
    remove_mtu(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"addresses": [{"address": "192.168.0.1", "type": "InternalIP"}]}, "192.168.0.1"),
        ({"bgp": {"ipv4Address": "192.168.0.1/24"}}, "192.168.0.1"),
        ({"addresses": [SVC_ADDRESS, {"address": "192.168.0.1", "type": "InternalIP"}]}, "192.168.0.1"),
        ({"addresses": [SVC_ADDRESS]}, "10.1.1.1"),
        ({"addresses": [{"address": text, "type": "InternalIP"} for text in ("192.168.0.1", "192.168.0.2")]}, "192.168.0.1"),
        ({"addresses": [{"address": "192.168.0.1", "type": "ExternalIP"}]}, None),
        ({"addresses": ["x", {"address": 1, "type": "InternalIP"}], "bgp": []}, None),
        ({"addresses": [{"address": "169.254.1.1", "type": "InternalIP"}]}, None),
    ],
)
def test_address_of_a_node(spec: dict[str, object], expected: str | None) -> None:
    found = node_facts(Resource("Node", {"name": "n" * 253}, spec), DEFAULT)
    assert found.addresses == ({} if expected is None else {4: Address(expected)})


@pytest.mark.parametrize(
    ("cidr", "spec", "kind", "mode"),
    [
        ("10.0.0.0/16", {}, "", "Never"),
        ("10.0.0.0/16", {"vxlanMode": "Always"}, VXLAN_V4, "Always"),
        ("fd00::/64", {"vxlanMode": "CrossSubnet"}, VXLAN_V6, "CrossSubnet"),
        ("10.0.0.0/16", {"ipipMode": "CrossSubnet"}, IPIP, "CrossSubnet"),
        ("fd00::/64", {"ipipMode": "Always"}, "", "Never"),
    ],
)
def test_tunnels_of_pools(cidr: str, spec: dict[str, str], kind: str, mode: str) -> None:
    found = routed_pool(Resource("IPPool", {"name": "p"}, {"cidr": cidr, **spec}))
    assert (found.kind, found.mode) == (kind, mode)


@pytest.mark.parametrize(
    ("affinity", "nodes", "borrowed"),
    [
        ("host:a", ["a", "b", ""], {1: "b"}),
        ("host:a", ["a", "a"], {}),
        (None, ["a"], {0: "a"}),
        ("virtual:load-balancer", ["a"], {}),
    ],
)
def test_borrowed_addresses_of_a_block(affinity: str | None, nodes: list[str], borrowed: dict[int, str]) -> None:
    block = Block(NETWORK, affinity, Ordinals(6), 1)
    block.attributes = [Attribute("h", {"node": node} if node else None) for node in nodes]
    for tag in range(len(nodes)):
        block.ordinals.allocate(tag)
    assert borrowed_addresses(block) == {NETWORK.address(ordinal): node for ordinal, node in borrowed.items()}


def test_the_interface_of_the_node_gives_the_mtu() -> None:
    interfaces = (Interface("eth0", 1500, (Address("192.168.0.1"),)), Interface("eth1", 9000, (Address("10.9.0.1"),)))
    pools = (routed_pool(Resource("IPPool", {"name": "p"}, {"cidr": "10.0.0.0/16", "vxlanMode": "Always"})),)
    nodes = {"n": node_facts(Resource("Node", {"name": "n"}, {"bgp": {"ipv4Address": "192.168.0.1/24"}}), DEFAULT)}
    inputs, tunnels = Inputs(nodes, pools=pools), {VXLAN_V4: Address("10.0.0.1")}
    for settings, parent, mtu in (
        (Settings({}, "n"), "eth0", 1450),
        (Settings({}, "n", interface="eth1"), "eth1", 8950),
        (Settings({}, "n", mtu=1400), "eth0", 1350),
    ):
        own = addresses_of_node(settings, inputs, interfaces)
        local = local_of(settings, inputs, interfaces, own, tunnels)
        tunnel = local.tunnels[VXLAN_V4]
        assert (tunnel.parent, tunnel.mtu, pod_mtu(settings, inputs, interfaces, own)) == (parent, mtu, mtu)
        assert local_of(settings, inputs, interfaces, own, {}).tunnels == {}  # the address may come later
    assert local_of(Settings({}, "n", use_tunnels=False), inputs, interfaces, {}, tunnels).tunnels == {}


@pytest.mark.parametrize(
    ("interface", "own", "problems"),
    [
        ("", {4: "192.168.0.1"}, []),
        ("", {6: "fd01::1"}, ["this node has no IPv4 address"]),
        ("", {4: "192.168.0.2"}, ["no interface has 192.168.0.2, the address of this node"]),
        ("eth9", {}, ["interface 'eth9' does not exist", "this node has no IPv4 address"]),
    ],
)
def test_a_missing_underlay_is_named(interface: str, own: dict[int, str], problems: list[str]) -> None:
    interfaces = (Interface("eth0", 1500, (Address("192.168.0.1"),)),)
    pools = (routed_pool(Resource("IPPool", {"name": "p"}, {"cidr": "10.0.0.0/16", "vxlanMode": "Always"})),)
    addresses = {version: Address(text) for version, text in own.items()}
    settings = Settings({}, "n", interface=interface)
    found = list(underlay_problems(settings, Inputs(pools=pools), interfaces, addresses))
    assert len(found) == len(problems)
    assert all(words in text for words, text in zip(problems, found, strict=True)), found
