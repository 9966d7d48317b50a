"""The NAT table of svc-routes, and traces of other programs, in real namespaces."""

import os
from pathlib import Path

import pytest

from harness.netns import Netns
from svc._core.cidr import Cidr
from svc.names import DEFAULT
from svc.routes import nft
from svc.routes.kernel_part import KernelPart
from svc.routes.wanted import Nat, Wanted

pytestmark = pytest.mark.root

POOL, OTHER, POOL6 = Cidr("10.65.0.0/16"), Cidr("10.66.0.0/16"), Cidr("fd00::/64")
NAT = Nat(frozenset({POOL, OTHER, POOL6, Cidr("10.65.7.0/24")}), frozenset({POOL, POOL6}))


def apply(part: KernelPart, nat: Nat | None, *, may_delete: bool = True) -> tuple[str, ...]:
    return part.apply(Wanted({}, nat=nat), may_delete=may_delete).problems


def listed(node: Netns) -> str:
    return node.run("nft", "list", "ruleset").stdout


def test_table_has_two_sets_of_each_family(part: KernelPart, node: Netns) -> None:
    """Networks inside others are left out, because intervals must not overlap."""
    assert apply(part, NAT) == ()
    text = " ".join(listed(node).split())
    assert "table inet svc-nat {" in text
    assert "set pools4 { type ipv4_addr flags interval elements = { 10.65.0.0/16, 10.66.0.0/16 } }" in text
    assert "set nat4 { type ipv4_addr flags interval elements = { 10.65.0.0/16 } }" in text
    assert "set pools6 { type ipv6_addr flags interval elements = { fd00::/64 } }" in text
    assert "type nat hook postrouting priority srcnat; policy accept;" in text
    assert "ip saddr @nat4 ip daddr != @pools4 masquerade fully-random" in text
    assert "ip6 saddr @nat6 ip6 daddr != @pools6 masquerade fully-random" in text


def test_table_is_written_only_after_a_change(part: KernelPart, node: Netns) -> None:
    """Handles of nftables count what was written."""
    apply(part, NAT)
    before = node.run("nft", "-a", "list", "ruleset").stdout
    apply(part, NAT)
    part.forget()
    apply(part, NAT)
    assert node.run("nft", "-a", "list", "ruleset").stdout == before
    apply(part, Nat(NAT.pools, frozenset()))
    assert "elements = { fd00::/64 }" in listed(node)
    assert listed(node).count("elements") == 2


def test_no_network_is_removed_without_leave(part: KernelPart, node: Netns) -> None:
    """A wiped datastore has no pools. The table stays in the process that has written it, and in the next one."""
    apply(part, NAT)
    before = listed(node)
    assert apply(part, Nat(), may_delete=False) == ()
    assert listed(node) == before
    second = KernelPart(DEFAULT)
    try:
        assert apply(second, Nat(), may_delete=False) == ()
        assert listed(node) == before
        apply(second, Nat())
    finally:
        second.close()
    assert "elements" not in listed(node)


@pytest.mark.parametrize(
    "damage",
    [
        "delete table inet svc-nat",
        "flush ruleset",
        "flush chain inet svc-nat postrouting",
        "add element inet svc-nat nat4 { 10.77.0.0/16 }",
    ],
)
def test_damage_is_found_by_a_full_comparison(part: KernelPart, node: Netns, damage: str) -> None:
    """Nothing tells of it, so that the caller starts one every minute."""
    apply(part, NAT)
    before = listed(node)
    node.run("nft", damage)
    part.forget()
    assert apply(part, NAT, may_delete=False) == ()
    assert listed(node) == before


def test_table_that_is_deleted_just_after_it_was_written(
    part: KernelPart, node: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next comparison writes it again."""
    real, deletions = nft.run, iter([("delete", "table", "inet", "svc-nat")])

    def run(*arguments: str, stdin: str = "") -> str:
        output = real(*arguments, stdin=stdin)
        if arguments[0] == "-f" and (deletion := next(deletions, None)):
            real(*deletion)
        return output

    monkeypatch.setattr(nft, "run", run)
    apply(part, NAT)
    assert "masquerade" not in listed(node)
    part.forget()
    apply(part, NAT)
    assert "masquerade" in listed(node)


def test_other_tables_are_not_changed(part: KernelPart, node: Netns) -> None:
    """Also if a rule there does something similar."""
    node.run("nft", "add table ip nat; add chain ip nat POSTROUTING { type nat hook postrouting priority 100 ; }")
    before = listed(node)
    apply(part, NAT)
    part.clean()
    assert listed(node) == before


def test_nat_that_is_off_has_no_table(part: KernelPart, node: Netns) -> None:
    """An earlier process may have left it."""
    node.run("nft", "add table inet svc-nat")
    apply(part, None, may_delete=False)
    assert "svc-nat" in listed(node)
    part.forget()
    apply(part, None)
    assert "svc-nat" not in listed(node)


def test_policy_that_drops_forwarded_packets_is_reported(part: KernelPart, node: Netns) -> None:
    """It is not changed. It is read again with a full comparison."""
    node.run("nft", "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0 ; policy drop ; }")
    assert apply(part, NAT) == (
        "chain 'FORWARD' of table 'ip filter' drops forwarded packets that no rule accepts: accept those of the pools there",
    )
    assert "policy drop" in listed(node)
    node.run("nft", "delete table ip filter")
    part.forget()
    assert apply(part, NAT) == ()


@pytest.mark.parametrize(("program", "family"), [("iptables-legacy", "ip"), ("ip6tables-legacy", "ip6")])
def test_policy_of_an_older_program_is_reported(part: KernelPart, node: Netns, program: str, family: str) -> None:
    """Rules before it do not matter."""
    node.run(program, "-A", "FORWARD", "-s", "::1" if family == "ip6" else "10.0.0.1", "-j", "ACCEPT")
    node.run(program, "-N", "OTHER")
    assert apply(part, NAT) == ()
    node.run(program, "-P", "FORWARD", "DROP")
    part.forget()
    (problem,) = apply(part, NAT)
    assert problem.startswith(f"chain 'FORWARD' of table '{family} filter' drops forwarded packets")
    node.run(program, "-P", "FORWARD", "ACCEPT")
    node.run(program, "-P", "INPUT", "DROP")
    part.forget()
    assert apply(part, NAT) == ()


def test_missing_nft_is_reported(part: KernelPart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is looked for again. Without NAT it is not missed."""
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = apply(part, NAT)
    assert problem == "the program nft is not installed, so that svc-routes can neither read nor write NAT"
    assert apply(part, None) == ()
    assert part.traces([POOL]) == []
    part.clean()
    monkeypatch.setenv("PATH", path)
    assert apply(part, NAT) == ()


def test_nft_that_fails_is_reported(part: KernelPart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text is the first line of what it says."""
    program = tmp_path / "nft"
    program.write_text("#!/bin/sh\necho 'Error: broken' >&2\necho more >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert apply(part, NAT) == ("nft failed: Error: broken",)


def test_nft_that_fails_is_tried_again_with_the_next_check(
    part: KernelPart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Changes of routes do not wait for it."""
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        before = apply(part, NAT)
    assert len(before) == 1
    assert apply(part, NAT) == before
    part.forget()
    assert apply(part, NAT) == ()


# --- traces


@pytest.mark.parametrize(
    ("commands", "trace"),
    [
        (["ip link add vxlan.calico type vxlan id 7 dstport 4799"], "device 'vxlan.calico' of another program exists"),
        (["ip link add flannel.1 type bridge"], "device 'flannel.1' of another program exists"),
        (["ip link add cilium_host type bridge"], "device 'cilium_host' of another program exists"),
        (
            ["ip link add tunl0 type bridge", "ip address add 10.65.0.1/32 dev tunl0"],
            "device 'tunl0' of another program has an address",
        ),
        (
            ["ip route add 10.65.1.0/26 via 192.168.0.2 proto 80", "ip route add blackhole 10.65.2.0/26 proto 80"],
            "2 routes of protocol 80 to addresses of the pools: 10.65.1.0/26 via 192.168.0.2 on up0",
        ),
        (
            ["ip route add blackhole 10.65.2.0/26 proto 12"],
            "1 route of protocol 12 to addresses of the pools: 10.65.2.0/26 blackhole",
        ),
        (
            ["ip route add 10.65.1.7/32 dev up1"],
            "1 route of protocol 3 to addresses of the pools: 10.65.1.7/32 on up1",
        ),
        (
            ["ip -6 route add fd00::40/122 via fd99::2 proto 80"],
            "1 route of protocol 80 to addresses of the pools: fd00::40/122 via fd99::2 on up0 with metric 1024",
        ),
        (
            ["nft 'add table ip nat; add chain ip nat cali-POSTROUTING'"],
            "NAT chain 'cali-POSTROUTING' of another program in table 'ip nat'",
        ),
        (
            ["iptables-nft -t nat -N FLANNEL-POSTRTG"],
            "NAT chain 'FLANNEL-POSTRTG' of another program in table 'ip nat'",
        ),
    ],
)
def test_trace_of_another_program_is_found(part: KernelPart, node: Netns, commands: list[str], trace: str) -> None:
    """The namespace has no trace before."""
    assert part.traces([POOL, POOL6]) == []
    for command in commands:
        node.run("sh", "-c", command)
    assert part.traces([POOL, POOL6]) == [trace]


@pytest.mark.parametrize(
    "commands",
    [
        ["ip link add tunl0 type bridge"],
        ["ip route add 10.77.0.0/26 via 192.168.0.2 proto 80"],
        ["ip route add default via 192.168.0.2 proto 80"],
        ["ip route add 10.0.0.0/8 via 192.168.0.2 proto 80"],
        [
            "ip link add svc0 address ee:ee:ee:ee:ee:ee type veth peer name eth7",
            "ip link set svc0 up",
            "ip route add 10.65.0.9/32 dev svc0",
        ],
        ["ip route add 10.65.1.0/26 via 192.168.0.2 proto 83"],
        ["ip link add vxlan.calico type bridge", "ip link set vxlan.calico alias svc-routes"],
        ["nft 'add table ip filter; add chain ip filter cali-FORWARD'"],
        ["nft 'add table ip nat; add chain ip nat KUBE-POSTROUTING'"],
    ],
)
def test_what_is_no_trace(part: KernelPart, node: Netns, commands: list[str]) -> None:
    """Own devices and routes, those of the agent's pods, and those that have nothing to do with the pools."""
    for command in commands:
        node.run("sh", "-c", command)
    assert part.traces([POOL, POOL6]) == []
