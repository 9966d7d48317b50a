"""Mode `auto` over a real kernel: when the program works, and how it makes way for another one."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.ipam import put_affinity, put_pool, remove
from harness.netns import Netns, run
from harness.route_world import World, eventually, one_world
from svc._core.cidr import Cidr
from svc.model.keys import AffinityKey, ResourceKey
from svc.routes import aside, mode, program
from svc.routes.report import as_table

pytestmark = pytest.mark.root

BLOCK, BLOCK2, TARGET = "10.0.0.0/26", "10.0.0.64/26", "10.0.0.7"
LAST = 2**32 - 2
MARK = "routes.traces"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with one_world(tmp_path) as found:
        yield found


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks and comparisons follow each other at once."""
    monkeypatch.setattr(mode, "CHECK_SECONDS", 0.7)
    monkeypatch.setattr(program, "COMPARE_SECONDS", 0.3)
    monkeypatch.setattr(aside, "ROUND_SECONDS", 0.3)


def state(world: World) -> str:
    return world.telemetry.report.state


def add_peer(world: World, stack: ExitStack) -> Netns:
    """Make another node, with an address of its block, on the uplink of this one."""
    peer = stack.enter_context(Netns("peer"))
    run("ip", "-n", peer.name, "link", "add", "uplink", "type", "veth", "peer", "name", "port", "netns", world.netns.name)
    run("ip", "-n", world.netns.name, "link", "set", "port", "master", "uplink", "up")
    lines = ["link set lo up", "link set uplink up", "address add 198.18.0.2/16 dev uplink", f"address add {TARGET}/32 dev lo"]
    run("ip", "-n", peer.name, "-batch", "-", stdin="\n".join(lines))
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    return peer


@contextmanager
def pinging(world: World) -> Iterator[None]:
    """Ping the other node every 10 ms, and require that no packet is lost."""
    pings = world.netns.begin("ping", "-n", "-i", "0.01", TARGET, stdout=subprocess.PIPE)
    try:
        yield
    finally:
        pings.send_signal(2)
        assert pings.stdout is not None
        text = pings.stdout.read().decode()
        pings.stdout.close()
        pings.wait()
    assert " 0% packet loss" in text, text


def test_a_fresh_node_works_at_once(world: World) -> None:
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    with world.running(mode="auto"):
        assert eventually(lambda: BLOCK in world.own_routes())
    assert not (world.folder / MARK).exists()


@pytest.mark.usefixtures("short_times")
def test_no_packet_is_lost_when_another_program_starts(world: World) -> None:
    """It finds room for its route, which it adds without a replacement. Then the own one goes."""
    with ExitStack() as stack:
        add_peer(world, stack)
        with world.running(mode="auto"):
            assert eventually(lambda: BLOCK in world.own_routes())
            with pinging(world):
                world.netns.ip("link", "add", "flannel.1", "type", "bridge")
                assert eventually(lambda: world.own_routes().get(BLOCK, {}).get("metric") == LAST)
                assert (state(world), world.telemetry.report.remaining) == ("idle", 1)
                world.netns.ip("route", "add", BLOCK, "via", "198.18.0.2", "proto", "12")
                assert eventually(lambda: world.own_routes() == {})
                assert eventually(lambda: world.telemetry.report.remaining == 0)
    assert "flannel.1" in (world.folder / MARK).read_text()


@pytest.mark.usefixtures("short_times")
def test_remaining_routes_follow_the_datastore_and_none_is_added(world: World) -> None:
    for number in (1, 2):
        world.add_node(f"n{number}", f"198.18.0.{number + 1}")
    put_affinity(world.store, BLOCK, node="n1")
    put_affinity(world.store, BLOCK2, node="n1")
    with world.running(mode="auto"):
        assert eventually(lambda: len(world.own_routes()) == 2)
        world.netns.ip("link", "add", "cilium_host", "type", "bridge")
        assert eventually(lambda: state(world) == "idle")
        put_affinity(world.store, "10.0.0.128/26", node="n1")
        put_affinity(world.store, BLOCK2, node="n2")
        remove(world.store, AffinityKey("n1", Cidr(BLOCK2)))
        assert eventually(lambda: world.own_routes().keys() == {BLOCK})


@pytest.mark.usefixtures("short_times")
def test_work_begins_again_after_quiet_minutes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "QUIET_SECONDS", 2.0)
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    world.netns.ip("link", "add", "flannel.1", "type", "bridge")
    with world.running(mode="auto"):
        assert eventually(lambda: state(world) == "idle")
        assert world.own_routes() == {}
        world.netns.ip("link", "delete", "flannel.1")
        assert eventually(lambda: any("not found any more" in each for each in world.telemetry.report.traces))
        assert eventually(lambda: world.own_routes().keys() == {BLOCK})
        assert world.own_routes()[BLOCK].get("metric", 0) == 0
        assert eventually(lambda: not (world.folder / MARK).exists())


def test_an_idle_program_rests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of the kernel, which are those of the other program, and its own search for traces cause no rounds."""
    rounds = list[float]()
    real = program.Program.step

    def step(self: program.Program) -> None:
        rounds.append(time.monotonic())
        real(self)

    monkeypatch.setattr(program.Program, "step", step)
    monkeypatch.setattr(mode, "CHECK_SECONDS", 1.0)
    world.netns.ip("link", "add", "flannel.1", "type", "bridge")
    with world.running(mode="auto"):
        assert eventually(lambda: state(world) == "idle")
        time.sleep(2)  # until everything is read, and later than the first search
        for number in range(5):
            world.netns.ip("route", "add", f"10.0.{number}.0/24", "via", "198.18.0.2", "proto", "12")
        time.sleep(1)
        before = len(rounds)
        time.sleep(4)
        assert len(rounds) - before <= 1


def test_a_node_that_had_another_program_waits_after_a_boot(world: World) -> None:
    """The other program has not started yet, and its traces are gone with the boot."""
    world.add_node("n1", "198.18.0.2")
    put_affinity(world.store, BLOCK, node="n1")
    (world.folder / MARK).write_text("device 'flannel.1' of another program exists\n")
    with world.running(mode="auto"):
        assert eventually(lambda: state(world) == "idle")
    assert world.telemetry.report.traces == ("not found any more: device 'flannel.1' of another program exists",)
    assert world.own_routes() == {}
    with world.running(mode="on"):
        assert eventually(lambda: BLOCK in world.own_routes())


@pytest.mark.usefixtures("short_times")
def test_a_wiped_datastore_keeps_what_remains(world: World) -> None:
    world.add_node("n1", "198.18.0.2")
    world.add_blocks(30)
    with world.running(mode="auto"):
        assert eventually(lambda: len(world.own_routes()) == 30)
        world.netns.ip("link", "add", "flannel.1", "type", "bridge")
        assert eventually(lambda: state(world) == "idle")
        for index in range(30):
            remove(world.store, AffinityKey("n1", Cidr("10.0.0.0/8").block(index, 26)))
        assert eventually(lambda: world.telemetry.report.held == 30)
        assert len(world.own_routes()) == 30


@pytest.mark.usefixtures("short_times")
def test_the_nat_table_follows_deleted_pools(world: World) -> None:
    """Also while no own route remains, and in the next process. A datastore without pools keeps it."""
    put_pool(world.store, "other", "172.16.0.0/16", natOutgoing=True)

    def networks() -> str:
        return world.netns.run("nft", "list", "ruleset").stdout

    with world.running(mode="auto", use_nat=True):
        assert eventually(lambda: "172.16.0.0/16" in networks())
        world.netns.ip("link", "add", "flannel.1", "type", "bridge")
        assert eventually(lambda: state(world) == "idle")
        put_pool(world.store, "third", "172.17.0.0/16", natOutgoing=True)
        assert eventually(lambda: "172.17.0.0/16" in networks())
        remove(world.store, ResourceKey("IPPool", "other"))
        assert eventually(lambda: "172.16.0.0/16" not in networks())
        assert "172.17.0.0/16" in networks()
    remove(world.store, ResourceKey("IPPool", "third"))
    with world.running(mode="auto", use_nat=True):
        assert eventually(lambda: "172.17.0.0/16" not in networks())
        assert "10.0.0.0/8" in networks()


@pytest.mark.usefixtures("short_times")
def test_problems_of_nft_are_reported_while_idle(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without nft, NAT chains of the other program are not seen. Without NAT it is not missed."""
    path = os.environ["PATH"]
    world.netns.ip("link", "add", "flannel.1", "type", "bridge")
    monkeypatch.setenv("PATH", str(tmp_path))

    def problems() -> list[str]:
        return [text for text in world.telemetry.report.problems if "nft is not installed" in text]

    with world.running(mode="auto", use_nat=True):
        assert eventually(lambda: state(world) == "idle" and len(problems()) == 1)
        assert "svc_routes_problems 1\n" in world.telemetry.text()
        assert "problem: the program nft is not installed" in as_table(world.telemetry.report.document())
        monkeypatch.setenv("PATH", path)
        assert eventually(lambda: not problems())
        monkeypatch.setenv("PATH", str(tmp_path))
        assert eventually(lambda: len(problems()) == 1)
    with world.running(mode="auto", use_nat=False):
        assert eventually(lambda: state(world) == "idle")
        assert not problems()


@pytest.mark.usefixtures("short_times")
def test_own_tunnel_ends_after_the_hand_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address stays assigned: the other program may use the same one."""
    monkeypatch.setattr(aside, "HANDOVER_SECONDS", 2.0)
    put_pool(world.store, "pool", "10.0.0.0/8", vxlanMode="Always")
    world.add_node("n1", "198.18.0.2")
    with world.running(mode="auto"):
        assert eventually(lambda: "vxlan.svc" in world.netns.links())
        world.netns.run("iptables-legacy", "-t", "nat", "-N", "cali-POSTROUTING")
        assert eventually(lambda: state(world) == "idle")
        assert eventually(lambda: "vxlan.svc" not in world.netns.links())
    assert (world.folder / "mtu").read_text() == "1450\n"
