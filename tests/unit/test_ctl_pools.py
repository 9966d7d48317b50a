"""svcctl: what applying and deleting pools and nodes does to a datastore."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from harness.backend_wrappers import Interfering, NonAtomic
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.admin import block_release, pools, resources
from svc.datastore.api import Create, Delete, Entry, NotFound, StoreError, Update, Write
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.cache import read_blocks
from svc.model.errors import CallerError
from svc.model.ipam import CONFIRMED, PENDING_DELETION, Affinity, Attribute, Block
from svc.model.keys import AffinityKey, AffinityQuery, BlockKey, BlockQuery, ResourceKey
from svc.model.resource import Resource

NOW = datetime(2026, 11, 20, 18, 2, 53, tzinfo=timezone.utc)


class Recorder(EmbeddedStore):
    """Remembers what was written, and may let another client write first, or in between."""

    def __init__(self, path: Path) -> None:
        self.written: list[Write] = []
        self.interference: list[Write] = []
        super().__init__(path)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        if self.interference:
            super().write([self.interference.pop(0)])
        done = super().write(writes, durable=durable)
        self.written.extend(writes)
        return done


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Recorder]:
    with closing(Recorder(tmp_path / "store.db")) as opened:
        yield opened


def pool(name: str = "p", cidr: str = "10.0.0.0/24", **spec: Any) -> Resource:
    return Resource("IPPool", {"name": name}, {"cidr": cidr} | spec)


def stored_pool(store: EmbeddedStore, name: str = "p") -> Resource:
    value = store.get(ResourceKey("IPPool", name)).value
    assert isinstance(value, Resource)
    return value


def apply(store: EmbeddedStore, *resources: Resource) -> list[str]:
    return pools.apply(store, resources, NOW)


def claim(store: EmbeddedStore, cidr: str, *attributes: Attribute, host: str = "node1", kind: str = "host") -> None:
    """A block with an affinity, and one address taken for each attribute."""
    ordinals = Ordinals(Cidr(cidr).bits - Cidr(cidr).length)
    for tag in range(len(attributes)):
        ordinals.allocate(tag)
    block = Block(Cidr(cidr), f"{kind}:{host}" if host else None, ordinals, 7, None, list(attributes))
    store.write([Create(BlockKey(block.cidr), block)])
    if host:
        store.write([Create(AffinityKey(host, block.cidr, kind), Affinity())])


def held(node: str = "node1") -> Attribute:
    return Attribute("net1.c1", {"node": node})


def test_created_with_defaults_and_identity(store: Recorder) -> None:
    """In one durable write."""
    assert apply(store, pool("a"), pool("b", "fd00::/112")) == ["created", "created"]
    found = stored_pool(store, "b")
    assert found.metadata["creationTimestamp"] == "2026-11-20T18:02:53Z"
    assert len(found.metadata["uid"]) == 36
    assert found.spec["blockSize"] == 122


def test_applying_again_changes_nothing(store: Recorder) -> None:
    """Not even the revision."""
    apply(store, pool())
    before = store.get(ResourceKey("IPPool", "p"))
    assert apply(store, pool(nodeSelector="all()")) == ["unchanged"]
    assert store.get(before.key) == before


def test_updates_keep_identity_and_status(store: Recorder) -> None:
    """And labels that the manifest does not mention."""
    first = pool()
    first.metadata["labels"] = {"a": "b"}
    apply(store, first)
    entry = store.get(ResourceKey("IPPool", "p"))
    assert isinstance(entry.value, Resource)
    entry.value.status = {"conditions": []}
    store.write([Update(entry.key, entry.value, entry.revision)])
    assert apply(store, pool(natOutgoing=True)) == ["updated"]
    found = stored_pool(store)
    assert (found.metadata, found.status) == (entry.value.metadata, {"conditions": []})
    assert found.spec["natOutgoing"] is True


def test_labels_are_replaced_when_given(store: Recorder) -> None:
    """In the order in which metadata is written."""
    apply(store, pool())
    labelled = pool()
    labelled.metadata["labels"] = {"c": "d"}
    assert apply(store, labelled) == ["updated"]
    assert list(stored_pool(store).metadata) == ["name", "uid", "creationTimestamp", "labels"]


def test_faults_of_all_pools_are_told_together(store: Recorder) -> None:
    """And nothing is written."""
    with pytest.raises(CallerError) as caught:
        apply(store, pool("good"), pool("a", "10.0.1.1/24"), pool("b", "10.0.2.0/24", blockSize=9))
    assert "IP pool 'a': spec.cidr" in caught.value.details
    assert "IP pool 'b': spec.blockSize" in caught.value.details
    assert not store.written


@pytest.mark.parametrize(
    ("second", "message"),
    [(pool("b", "10.0.0.128/25"), "overlaps IP pool 'a'"), (pool("a", "10.0.0.0/24"), "given 2 times")],
    ids=["overlap", "same name"],
)
def test_pools_of_one_file_are_checked_against_each_other(store: Recorder, second: Resource, message: str) -> None:
    """As if the first were there already."""
    with pytest.raises(CallerError) as caught:
        apply(store, pool("a"), second)
    assert message in caught.value.details


def test_swapped_ranges_are_faults(store: Recorder) -> None:
    """A pool may not move, even if others move with it."""
    apply(store, pool("a", "10.0.0.0/24"), pool("b", "10.0.1.0/24"))
    with pytest.raises(CallerError, match="2 errors"):
        apply(store, pool("a", "10.0.1.0/24"), pool("b", "10.0.0.0/24"))


def test_existing_blocks_fix_the_block_size(store: Recorder) -> None:
    """A pool that was deleted and comes back differently."""
    claim(store, "10.0.0.0/28")
    with pytest.raises(CallerError) as caught:
        apply(store, pool())
    assert "set blockSize to 28" in caught.value.details


def test_lost_races_are_run_again(store: Recorder) -> None:
    """Against what the pool is by then."""
    apply(store, pool())
    entry = store.get(ResourceKey("IPPool", "p"))
    store.interference = [Update(entry.key, pool(natOutgoing=True), entry.revision)]
    assert apply(store, pool(ipipMode="Always")) == ["updated"]
    assert stored_pool(store).spec["ipipMode"] == "Always"
    store.interference = [Delete(entry.key)]
    assert apply(store, pool()) == ["created"]


@pytest.mark.parametrize("cidr", ["10.0.0.0/24", "10.0.0.128/25"])
def test_pools_applied_at_the_same_time_never_overlap(tmp_path: Path, cidr: str) -> None:
    """Another process has looked, and found nothing either; the later writer gets an error."""
    with closing(EmbeddedStore(tmp_path / "store.db")) as one, closing(EmbeddedStore(tmp_path / "store.db")) as other:
        late = Interfering(one, 1, lambda: pools.apply(other, [pool("a")], NOW))
        with pytest.raises(CallerError, match="1 error,") as caught:
            pools.apply(late, [pool("b", cidr)], NOW)
        assert "overlaps IP pool 'a'" in caught.value.details
        assert [each.name for each in resources.get(one, "IPPool")] == ["a"]


def test_store_without_information_takes_pools(store: Recorder) -> None:
    """It is not initialised yet: that is an ADD's concern."""
    store.write([Delete(ResourceKey("ClusterInformation", "default"))])
    assert apply(store, pool()) == ["created"]


def test_endless_races_end(store: Recorder) -> None:
    """With an error that says so."""
    apply(store, pool())
    key = ResourceKey("IPPool", "p")
    store.interference = [write for _ in range(100) for write in (Delete(key), Create(key, pool(natOutgoing=True)))]
    with pytest.raises(StoreError, match="the list of IP pools keeps changing"):
        apply(store, pool(ipipMode="Always"))


def test_unknown_pool_is_told_with_the_known(store: Recorder) -> None:
    """For get and delete."""
    apply(store, pool("a"), pool("b", "10.0.1.0/24"))
    for act in (lambda: resources.get(store, "IPPool", "x"), lambda: pools.delete(store, "x")):
        with pytest.raises(CallerError, match="IP pool 'x' does not exist") as caught:
            act()
        assert caught.value.details == "known: a, b"


def test_used_pools_are_not_deleted(store: Recorder) -> None:
    """Nor touched; addresses in cooldown have no owner."""
    apply(store, pool())
    claim(store, "10.0.0.0/26", held(), held(), Attribute(released_at="2026-11-20T18:02:53Z"))
    claim(store, "10.0.0.64/26", held(), host="")
    store.written.clear()
    with pytest.raises(CallerError, match="IP pool 'p' is in use: 3 addresses are taken"):
        pools.delete(store, "p")
    assert not store.written


def test_deletion_disables_then_releases_then_deletes(store: Recorder) -> None:
    """So that what is broken off half-way is seen for what it is."""
    apply(store, pool(), pool("other", "10.0.1.0/24"))
    claim(store, "10.0.0.0/26", Attribute(released_at="2026-11-20T18:02:53Z"))
    claim(store, "10.0.0.64/26", host="")
    claim(store, "10.0.1.0/26", held())
    claim(store, "10.0.0.128/26", host="load-balancer", kind="virtual")
    store.write([Create(AffinityKey("node2", Cidr("10.0.0.192/26")), Affinity("pending"))])
    store.written.clear()
    pools.delete(store, "p")
    told = [(type(write).__name__, write.key) for write in store.written]
    one, two = AffinityKey("node1", Cidr("10.0.0.0/26")), AffinityKey("load-balancer", Cidr("10.0.0.128/26"), "virtual")
    assert told == [
        ("Update", ResourceKey("IPPool", "p")),
        ("Update", one),
        ("Delete", BlockKey(one.cidr)),
        ("Delete", one),
        ("Delete", AffinityKey("node2", Cidr("10.0.0.192/26"))),
        ("Update", two),
        ("Delete", BlockKey(two.cidr)),
        ("Delete", two),
        ("Delete", BlockKey(Cidr("10.0.0.64/26"))),
        ("Delete", ResourceKey("IPPool", "p")),
    ]
    first, second = store.written[:2]
    assert isinstance(first, Update)
    assert isinstance(first.value, Resource)
    assert first.value.spec["disabled"] is True
    assert isinstance(second, Update)
    assert second.value == Affinity(PENDING_DELETION)
    assert [entry.key for entry in store.list(BlockQuery())] == [BlockKey(Cidr("10.0.1.0/26"))]


def test_address_taken_meanwhile_stops_the_deletion(store: Recorder) -> None:
    """The pool stays, disabled; the block with the address is unclaimed; a second try succeeds once it is free."""
    apply(store, pool())
    claim(store, "10.0.0.0/26")
    entry = store.get(BlockKey(Cidr("10.0.0.0/26")))
    assert isinstance(entry.value, Block)
    entry.value.attributes = [held()]
    entry.value.ordinals.allocate(0)
    store.interference = [Update(entry.key, entry.value, entry.revision)]
    with pytest.raises(CallerError, match="1 address is taken") as caught:
        pools.delete(store, "p")
    assert "delete it again" in caught.value.details
    assert stored_pool(store).spec["disabled"] is True
    block = store.get(entry.key)
    assert isinstance(block.value, Block)
    assert (block.value.affinity, block.value.claimed_at, block.value.sequence) == (None, None, 8)
    assert list(store.list(AffinityQuery())) == []
    block.value.ordinals.release(0)
    store.write([Update(block.key, block.value, block.revision)])
    pools.delete(store, "p")
    assert list(store.list(BlockQuery())) == []


def test_stale_affinity_leaves_the_block_alone(store: Recorder) -> None:
    """It belongs to another node."""
    claim(store, "10.0.0.0/26", host="node2")
    stale = AffinityKey("node1", Cidr("10.0.0.0/26"))
    store.write([Create(stale, Affinity(CONFIRMED))])
    block_release.end_affinity(store, stale)
    with pytest.raises(NotFound):
        store.get(stale)
    assert store.get(BlockKey(stale.cidr))
    block_release.end_affinity(store, stale)


def test_lost_release_is_run_again(store: Recorder) -> None:
    """Another client released the same block."""
    claim(store, "10.0.0.0/26")
    key = AffinityKey("node1", Cidr("10.0.0.0/26"))
    store.interference = [Delete(key)]
    block_release.end_affinity(store, key)
    assert list(store.list(AffinityQuery())) == []


def test_unreadable_pool_can_be_deleted(store: Recorder) -> None:
    """It cannot have blocks."""
    store.write([Create(ResourceKey("IPPool", "p"), pool(cidr="nonsense"))])
    pools.delete(store, "p")
    assert resources.get(store, "IPPool") == []


def test_nodes_are_created_labelled_and_deleted(store: Recorder) -> None:
    """Labels are replaced when any are given."""
    assert resources.apply_node(store, "n", {"a": "b"}, NOW) == "created"
    assert resources.apply_node(store, "n", None, NOW) == "unchanged"
    assert resources.apply_node(store, "n", {"a": "b"}, NOW) == "unchanged"
    assert resources.apply_node(store, "n", {"c": "d"}, NOW) == "updated"
    (node,) = resources.get(store, "Node")
    assert (node.labels, node.status) == ({"c": "d"}, {})
    resources.delete_node(store, "n")
    assert resources.get(store, "Node") == []


def test_node_without_labels_has_no_empty_ones(store: Recorder) -> None:
    """They are left out, as everywhere."""
    resources.apply_node(store, "n", {}, NOW)
    assert list(resources.get(store, "Node", "n")[0].metadata) == ["name", "uid", "creationTimestamp"]


def test_unknown_node_and_bad_name_are_told(store: Recorder) -> None:
    """Before anything is written."""
    for act in (lambda: resources.get(store, "Node", "x"), lambda: resources.delete_node(store, "x")):
        with pytest.raises(CallerError, match="node 'x' does not exist"):
            act()
    with pytest.raises(CallerError, match="'N_1' cannot name"):
        resources.apply_node(store, "N_1", {}, NOW)


def test_deletion_gives_up_its_blocks(store: Recorder) -> None:
    """Those that others borrowed from stay, unclaimed."""
    resources.apply_node(store, "node1", {}, NOW)
    claim(store, "10.0.0.0/26")
    claim(store, "10.0.0.64/26", held("node2"))
    claim(store, "10.0.0.128/26", host="node2")
    resources.delete_node(store, "node1")
    assert [entry.key for entry in store.list(AffinityQuery())] == [AffinityKey("node2", Cidr("10.0.0.128/26"))]
    assert [str(block.cidr) for block in read_blocks(store)] == ["10.0.0.128/26", "10.0.0.64/26"]


def test_node_with_workloads_is_not_deleted(store: Recorder) -> None:
    """Wherever their addresses come from."""
    resources.apply_node(store, "node1", {}, NOW)
    claim(store, "10.0.0.64/26", held(), host="node2")
    with pytest.raises(CallerError, match="node 'node1' is in use: 1 addresses"):
        resources.delete_node(store, "node1")


def test_long_lists_of_names_are_cut(store: Recorder) -> None:
    """An error does not list a cluster's thousands of nodes."""
    for number in range(25):
        resources.apply_node(store, f"n{number:02}", {}, NOW)
    with pytest.raises(CallerError) as caught:
        resources.require(store, "Node", "x")
    assert caught.value.details.endswith("n18, n19 and 5 more")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_pools_applied_key_by_key_at_the_same_time_never_overlap(store: Recorder, number: int) -> None:
    """Whichever write the other comes before: one of the two is in use at the end, and is whole."""
    refused = []

    def other() -> None:
        try:
            pools.apply(NonAtomic(store), [pool("b", "10.0.0.128/25")], NOW)
        except CallerError as refusal:
            refused.append(refusal)

    crossed = Interfering(store, number, other)
    try:
        pools.apply(NonAtomic(crossed), [pool("a", "10.0.0.0/24")], NOW)
    except CallerError as refusal:
        refused.append(refusal)
    assert len(refused) == (number < 3)
    assert all("overlaps IP pool" in refusal.details for refusal in refused)
    (left,) = resources.get(store, "IPPool")
    assert "disabled" not in left.spec or left.spec["disabled"] is False


def test_a_pool_that_was_left_out_of_use_is_put_into_use(store: Recorder) -> None:
    """By applying it again: the process that made it was killed before it could."""
    crossed = Interfering(store, 2, _interrupt)
    with pytest.raises(KeyboardInterrupt):
        pools.apply(NonAtomic(crossed), [pool("a")], NOW)
    assert stored_pool(store, "a").spec["disabled"] is True
    assert pools.apply(NonAtomic(store), [pool("a")], NOW) == ["updated"]
    assert stored_pool(store, "a").spec.get("disabled", False) is False


def _interrupt() -> None:
    raise KeyboardInterrupt
