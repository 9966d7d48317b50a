"""The addresses of tunnels: which are kept, released and used, with a node that only notes what is asked of it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import pytest

from svc._core.cidr import Address
from svc.datastore.api import StoreError
from svc.model.errors import PeerError
from svc.routes.inputs import HANDLES
from svc.routes.interfaces import Interface
from svc.routes.local import moved_addresses
from svc.routes.own_marks import OwnMarks, remove_marks
from svc.routes.settings import Settings
from svc.routes.store_notes import FileNotes, remove_notes
from svc.routes.tunnel_addresses import TunnelAddresses
from svc.routes.wanted import IPIP, VXLAN_V4, VXLAN_V6

FIRST, SECOND = Address("10.0.0.1"), Address("10.0.0.2")
NEEDED = {VXLAN_V4: ("pool",)}


class Node:
    """The calls of OwnNode."""

    def __init__(self, *held: Address) -> None:
        self.addresses = held
        self.released: list[str] = []
        self.registered: list[tuple[dict[int, Address], set[Address]]] = []
        self.is_full = self.is_broken = self.has_no_ipam = self.has_none = False

    def assign(self, kind: str, pools: Iterable[str], former: Address | None = None) -> Address:
        if self.has_no_ipam:
            raise ImportError("no IPAM")
        if self.is_full:
            raise PeerError(f"no address for {kind} from {pools}")
        return self.addresses[0]

    def held(self, _: str) -> tuple[Address, ...]:
        if self.has_no_ipam:
            raise ImportError("no IPAM")
        return () if self.has_none else self.addresses

    def release(self, kind: str) -> None:
        self.released.append(kind)

    def register(
        self,
        addresses: Mapping[int, Address],
        former: Collection[Address],
        note: Callable[[Collection[Address]], None],
    ) -> None:
        if self.is_broken:
            raise RuntimeError("broken")
        self.registered.append((dict(addresses), set(former)))
        note(addresses.values())


@pytest.fixture
def marks(tmp_path: Path) -> OwnMarks:
    return OwnMarks(tmp_path)


def made(node: Node, marks: OwnMarks, **present: Address) -> TunnelAddresses:
    devices = {VXLAN_V4: present["v4"]} if present else {}
    return TunnelAddresses(lambda: node, lambda: None, devices, marks)  # type: ignore[arg-type, return-value]


def test_addresses_of_devices_are_used_until_ipam_answers(marks: OwnMarks) -> None:
    tunnels = made(Node(SECOND), marks, v4=FIRST)
    assert tunnels.addresses == {VXLAN_V4: FIRST}
    tunnels.want(NEEDED, {})
    tunnels.attempt_needed()
    assert tunnels.addresses == {VXLAN_V4: SECOND}


@pytest.mark.parametrize(("kept", "released"), [(frozenset(HANDLES), []), (frozenset({VXLAN_V4}), [VXLAN_V6, IPIP])])
def test_an_address_that_a_device_or_another_program_has_is_not_released(
    marks: OwnMarks, kept: frozenset[str], released: list[str]
) -> None:
    for kind in HANDLES:
        marks.add_tunnel(kind)
    node = Node()
    tunnels = made(node, marks)
    tunnels.want({}, {}, kept)
    tunnels.attempt_needed()
    assert node.released == released
    tunnels.want({}, {})
    tunnels.attempt_needed()
    tunnels.attempt_needed()
    assert sorted(node.released) == sorted(HANDLES)


def test_after_a_boot_only_own_addresses_are_released(tmp_path: Path) -> None:
    """No device tells any more whose they are. The handles are those of another program, too."""
    free = Node(FIRST)
    free.has_none = True
    first = made(free, OwnMarks(tmp_path))
    first.want(NEEDED, {})
    first.attempt_needed()
    node = Node(FIRST)
    second = made(node, OwnMarks(tmp_path))
    second.want({}, {})
    second.attempt_needed()
    assert node.released == [VXLAN_V4]
    assert OwnMarks(tmp_path).tunnels == frozenset()


def test_an_address_that_another_program_has_assigned_is_not_released(tmp_path: Path) -> None:
    """svc-routes uses it, as the handles are the same. A boot changes nothing about it."""
    first = made(Node(FIRST), OwnMarks(tmp_path))
    first.want(NEEDED, {})
    first.attempt_needed()
    assert first.addresses == {VXLAN_V4: FIRST}
    for present in ({}, {"v4": FIRST}):
        node = Node(FIRST)
        second = made(node, OwnMarks(tmp_path), **present)
        second.want({}, {})
        second.attempt_needed()
        assert (node.released, second.addresses) == ([], {})
    marks = OwnMarks(tmp_path)
    assert (marks.tunnels, marks.adopted) == (frozenset(), frozenset({VXLAN_V4}))


def test_a_device_tells_that_an_address_is_own(marks: OwnMarks) -> None:
    """Also if the file of the state directory is lost."""
    node = Node(FIRST)
    tunnels = made(node, marks, v4=FIRST)
    tunnels.want({}, {})
    tunnels.attempt_needed()
    assert node.released == [VXLAN_V4]


def test_registered_addresses_are_known_after_a_boot(tmp_path: Path) -> None:
    for address, former in ((FIRST, set[Address]()), (SECOND, {FIRST}), (FIRST, {FIRST, SECOND})):
        node = Node()
        tunnels = made(node, OwnMarks(tmp_path))
        tunnels.want({}, {4: address})
        tunnels.attempt_needed()
        assert node.registered == [({4: address}, former)]
    remove_marks(tmp_path)
    remove_marks(tmp_path)
    assert OwnMarks(tmp_path).registered == frozenset()


def test_an_address_whose_correction_failed_is_corrected_later(tmp_path: Path) -> None:
    """The new address is noted, and the Node still has the old one."""
    for address in (FIRST, SECOND):
        OwnMarks(tmp_path).add_registered([address])
    settings = Settings({"kind": "etcdv3"}, "n1", interface="up0")
    found = moved_addresses(settings, (Interface("up0", 1500, (SECOND,)),), {4: FIRST}, OwnMarks(tmp_path).registered)
    assert found == {4: SECOND}


@pytest.mark.parametrize("text", ["{", "[]", '{"tunnels": 1}', '{"tunnels": [], "addresses": ["x"]}'])
def test_a_damaged_file_means_that_nothing_is_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.routes").write_text(text)
    marks = OwnMarks(tmp_path)
    assert (marks.tunnels, marks.registered) == (frozenset(), frozenset())
    marks.add_tunnel(VXLAN_V4)
    assert OwnMarks(tmp_path).tunnels == {VXLAN_V4}


def test_an_error_of_svc_is_a_problem(marks: OwnMarks) -> None:
    """It does not end the thread."""
    node = Node(FIRST)
    node.is_broken = True
    tunnels = made(node, marks)
    tunnels.want(NEEDED, {4: FIRST})
    tunnels.attempt_needed()
    assert "an error of svc, RuntimeError: broken" in tunnels.problems["address"]
    assert tunnels.addresses == {VXLAN_V4: FIRST}


def test_an_error_of_svc_keeps_the_address_of_the_device(marks: OwnMarks) -> None:
    """Whether IPAM has given it back cannot be asked either."""
    node = Node(FIRST)
    node.has_no_ipam = True
    tunnels = made(node, marks, v4=FIRST)
    tunnels.want(NEEDED, {})
    tunnels.attempt_needed()
    assert "no IPAM" in tunnels.problems[VXLAN_V4]
    assert tunnels.addresses == {VXLAN_V4: FIRST}


@pytest.mark.parametrize(("held", "used"), [((FIRST,), {VXLAN_V4: FIRST}), ((SECOND,), {}), ((), {})])
def test_an_address_that_ipam_has_given_back_is_used_no_longer(
    marks: OwnMarks, held: tuple[Address, ...], used: dict[str, Address]
) -> None:
    """The pool is full. What the node has is not released."""
    node = Node(*held)
    node.is_full = True
    tunnels = made(node, marks, v4=FIRST)
    tunnels.want(NEEDED, {}, frozenset(HANDLES))
    tunnels.attempt_needed()
    assert tunnels.addresses == used
    assert node.released == ([] if held else [VXLAN_V4])
    assert "no address" in tunnels.problems[VXLAN_V4]


def test_the_noted_datastore_survives_the_process(tmp_path: Path) -> None:
    """A node has one datastore. A damaged file says nothing, and one that cannot be written stops nothing but the note."""
    notes = FileNotes(tmp_path)
    assert (notes.note("a"), notes.notes("*")) == ("", {})
    notes.put_note("a kind=etcdv3", "x")
    notes.put_note("b kind=etcdv3", "y")
    assert (FileNotes(tmp_path).note("b kind=etcdv3"), notes.notes("*kind=etcdv3")) == ("y", {"b kind=etcdv3": "y"})
    for damaged in ("{", "[]", "\ufffd"):
        (tmp_path / "datastore.routes").write_text(damaged)
        assert notes.notes("*") == {}
    remove_notes(tmp_path)
    remove_notes(tmp_path)
    with pytest.raises(StoreError, match=r"datastore\.routes cannot be written: No such file or directory: make room"):
        FileNotes(tmp_path / "missing").put_note("a", "x")


def test_nothing_is_written_at_rest(marks: OwnMarks) -> None:
    marks.add_tunnel(IPIP)
    node = Node()
    tunnels = made(node, marks)
    tunnels.want({}, {})
    tunnels.rest()
    tunnels.attempt_needed()
    assert node.released == []
