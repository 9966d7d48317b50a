"""svcctl: effects of applying and deleting pools and nodes on a datastore."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from harness.backend_wrappers import Interfering, NonAtomic
from svc._core.bitmap import Ordinals
from svc._core.cidr import Cidr
from svc.admin import block_release, kinds, pools, resources
from svc.admin.changes import Options
from svc.datastore.api import Create, Delete, Entry, NotFound, StoreError, Update, Write
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.cache import read_blocks
from svc.model.errors import CallerError
from svc.model.ipam import CONFIRMED, PENDING_DELETION, Affinity, Attribute, Block
from svc.model.keys import AffinityKey, AffinityQuery, BlockKey, BlockQuery, ResourceKey
from svc.model.resource import Resource

NOW = datetime(2026, 11, 20, 18, 2, 53, tzinfo=timezone.utc)
OPTIONS = Options(NOW)


class Recorder(EmbeddedStore):
    """A store that records writes. Before each write it applies one of `interference`, the writes of another client."""

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
    return kinds.apply_all(store, kinds.POOLS, resources, OPTIONS)


def claim(store: EmbeddedStore, cidr: str, *attributes: Attribute, host: str = "node1", kind: str = "host") -> None:
    """Create a block with an affinity, and assign one address for each attribute."""
    ordinals = Ordinals(Cidr(cidr).bits - Cidr(cidr).length)
    for tag in range(len(attributes)):
        ordinals.allocate(tag)
    block = Block(Cidr(cidr), f"{kind}:{host}" if host else None, ordinals, 7, None, list(attributes))
    store.write([Create(BlockKey(block.cidr), block)])
    if host:
        store.write([Create(AffinityKey(host, block.cidr, kind), Affinity())])


def allocation(node: str = "node1") -> Attribute:
    return Attribute("net1.c1", {"node": node})


def test_pools_are_created_with_defaults_and_identity(store: Recorder) -> None:
    """One write creates both pools."""
    assert apply(store, pool("a"), pool("b", "fd00::/112")) == ["created", "created"]
    found = stored_pool(store, "b")
    assert found.metadata["creationTimestamp"] == "2026-11-20T18:02:53Z"
    assert len(found.metadata["uid"]) == 36
    assert found.spec["blockSize"] == 122


def test_applying_again_changes_nothing(store: Recorder) -> None:
    """The revision does not change either."""
    apply(store, pool())
    before = store.get(ResourceKey("IPPool", "p"))
    assert apply(store, pool(nodeSelector="all()")) == ["unchanged"]
    assert store.get(before.key) == before


def test_updates_keep_identity_and_status(store: Recorder) -> None:
    """They also keep labels that the manifest does not mention."""
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


def test_labels_are_replaced_if_given(store: Recorder) -> None:
    """The fields of metadata keep their order."""
    apply(store, pool())
    labelled = pool()
    labelled.metadata["labels"] = {"c": "d"}
    assert apply(store, labelled) == ["updated"]
    assert list(stored_pool(store).metadata) == ["name", "uid", "creationTimestamp", "labels"]


def test_errors_of_all_pools_are_reported_together(store: Recorder) -> None:
    """No pool is written."""
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
    """The second pool is checked as if the first one existed."""
    with pytest.raises(CallerError) as caught:
        apply(store, pool("a"), second)
    assert message in caught.value.details


def test_swapped_ranges_are_refused(store: Recorder) -> None:
    """The CIDR of a pool cannot change, even if that of another pool changes as well."""
    apply(store, pool("a", "10.0.0.0/24"), pool("b", "10.0.1.0/24"))
    with pytest.raises(CallerError, match="2 errors"):
        apply(store, pool("a", "10.0.1.0/24"), pool("b", "10.0.0.0/24"))


def test_existing_blocks_determine_the_block_size(store: Recorder) -> None:
    """The blocks remain from a pool that was deleted."""
    claim(store, "10.0.0.0/28")
    with pytest.raises(CallerError) as caught:
        apply(store, pool())
    assert "set blockSize to 28" in caught.value.details


def test_conflicting_updates_are_repeated(store: Recorder) -> None:
    """The next attempt uses the new state of the pool."""
    apply(store, pool())
    entry = store.get(ResourceKey("IPPool", "p"))
    store.interference = [Update(entry.key, pool(natOutgoing=True), entry.revision)]
    assert apply(store, pool(ipipMode="Always")) == ["updated"]
    assert stored_pool(store).spec["ipipMode"] == "Always"
    store.interference = [Delete(entry.key)]
    assert apply(store, pool()) == ["created"]


@pytest.mark.parametrize("cidr", ["10.0.0.0/24", "10.0.0.128/25"])
def test_pools_applied_at_the_same_time_never_overlap(tmp_path: Path, cidr: str) -> None:
    """Both processes check the pools before either of them writes. The later writer gets an error."""
    with closing(EmbeddedStore(tmp_path / "store.db")) as one, closing(EmbeddedStore(tmp_path / "store.db")) as other:
        interfering = Interfering(one, 1, lambda: kinds.apply_all(other, kinds.POOLS, [pool("a")], OPTIONS))
        with pytest.raises(CallerError, match="1 error,") as caught:
            kinds.apply_all(interfering, kinds.POOLS, [pool("b", cidr)], OPTIONS)
        assert "overlaps IP pool 'a'" in caught.value.details
        assert [each.name for each in resources.get(one, "IPPool")] == ["a"]


def test_store_without_cluster_information_accepts_pools(store: Recorder) -> None:
    """An ADD requires an initialised datastore, but svcctl does not."""
    store.write([Delete(ResourceKey("ClusterInformation", "default"))])
    assert apply(store, pool()) == ["created"]


def test_repeated_conflicts_end_in_an_error(store: Recorder) -> None:
    apply(store, pool())
    key = ResourceKey("IPPool", "p")
    store.interference = [write for _ in range(100) for write in (Delete(key), Create(key, pool(natOutgoing=True)))]
    with pytest.raises(StoreError, match="the list of IP pools keeps changing"):
        apply(store, pool(ipipMode="Always"))


def test_error_about_an_unknown_pool_lists_the_known_pools(store: Recorder) -> None:
    """This holds for get and delete."""
    apply(store, pool("a"), pool("b", "10.0.1.0/24"))
    for act in (lambda: resources.get(store, "IPPool", "x"), lambda: pools.delete(store, "x")):
        with pytest.raises(CallerError, match="IP pool 'x' does not exist") as caught:
            act()
        assert caught.value.details == "known: a, b"


def test_used_pools_are_not_deleted(store: Recorder) -> None:
    """They are not changed. Addresses in cooldown do not count as used."""
    apply(store, pool())
    claim(store, "10.0.0.0/26", allocation(), allocation(), Attribute(released_at="2026-11-20T18:02:53Z"))
    claim(store, "10.0.0.64/26", allocation(), host="")
    store.written.clear()
    with pytest.raises(CallerError, match="IP pool 'p' is in use: 3 addresses are taken"):
        pools.delete(store, "p")
    assert not store.written


def test_deletion_disables_the_pool_before_it_releases_blocks(store: Recorder) -> None:
    """An interrupted deletion therefore leaves a disabled pool."""
    apply(store, pool(), pool("other", "10.0.1.0/24"))
    claim(store, "10.0.0.0/26", Attribute(released_at="2026-11-20T18:02:53Z"))
    claim(store, "10.0.0.64/26", host="")
    claim(store, "10.0.1.0/26", allocation())
    claim(store, "10.0.0.128/26", host="load-balancer", kind="virtual")
    store.write([Create(AffinityKey("node2", Cidr("10.0.0.192/26")), Affinity("pending"))])
    store.written.clear()
    pools.delete(store, "p")
    writes = [(type(write).__name__, write.key) for write in store.written]
    one, two = AffinityKey("node1", Cidr("10.0.0.0/26")), AffinityKey("load-balancer", Cidr("10.0.0.128/26"), "virtual")
    assert writes == [
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


def test_concurrent_assignment_stops_the_deletion(store: Recorder) -> None:
    """The pool stays disabled, and its block is unclaimed. A second deletion succeeds after the address is released."""
    apply(store, pool())
    claim(store, "10.0.0.0/26")
    entry = store.get(BlockKey(Cidr("10.0.0.0/26")))
    assert isinstance(entry.value, Block)
    entry.value.attributes = [allocation()]
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


def test_deleting_a_stale_affinity_keeps_the_block(store: Recorder) -> None:
    """The block belongs to another node."""
    claim(store, "10.0.0.0/26", host="node2")
    stale = AffinityKey("node1", Cidr("10.0.0.0/26"))
    store.write([Create(stale, Affinity(CONFIRMED))])
    block_release.end_affinity(store, stale)
    with pytest.raises(NotFound):
        store.get(stale)
    assert store.get(BlockKey(stale.cidr))
    block_release.end_affinity(store, stale)


def test_conflicting_release_is_repeated(store: Recorder) -> None:
    """Another client released the same block."""
    claim(store, "10.0.0.0/26")
    key = AffinityKey("node1", Cidr("10.0.0.0/26"))
    store.interference = [Delete(key)]
    block_release.end_affinity(store, key)
    assert list(store.list(AffinityQuery())) == []


def test_unreadable_pool_can_be_deleted(store: Recorder) -> None:
    """A pool without a valid CIDR cannot have blocks."""
    store.write([Create(ResourceKey("IPPool", "p"), pool(cidr="nonsense"))])
    pools.delete(store, "p")
    assert resources.get(store, "IPPool") == []


def test_nodes_are_created_labelled_and_deleted(store: Recorder) -> None:
    """Given labels replace the stored ones."""
    assert kinds.apply_node(store, "n", {"a": "b"}, OPTIONS) == "created"
    assert kinds.apply_node(store, "n", None, OPTIONS) == "unchanged"
    assert kinds.apply_node(store, "n", {"a": "b"}, OPTIONS) == "unchanged"
    assert kinds.apply_node(store, "n", {"c": "d"}, OPTIONS) == "updated"
    (node,) = resources.get(store, "Node")
    assert (node.labels, node.status) == ({"c": "d"}, {})
    resources.delete_node(store, "n")
    assert resources.get(store, "Node") == []


def test_node_without_labels_has_no_field_for_them(store: Recorder) -> None:
    kinds.apply_node(store, "n", {}, OPTIONS)
    assert list(resources.get(store, "Node", "n")[0].metadata) == ["name", "uid", "creationTimestamp"]


def test_unknown_node_and_invalid_name_are_refused(store: Recorder) -> None:
    """Nothing is written."""
    for act in (lambda: resources.get(store, "Node", "x"), lambda: resources.delete_node(store, "x")):
        with pytest.raises(CallerError, match="node 'x' does not exist"):
            act()
    with pytest.raises(CallerError, match="'N_1' cannot name"):
        kinds.apply_node(store, "N_1", {}, OPTIONS)


@pytest.mark.parametrize("registered", [True, False])
def test_deleting_a_node_releases_its_blocks(store: Recorder, registered: bool) -> None:
    """Blocks with addresses of other nodes stay, but are unclaimed. The name may be mistyped, so that it only has blocks."""
    if registered:
        kinds.apply_node(store, "node1", {}, OPTIONS)
    claim(store, "10.0.0.0/26")
    claim(store, "10.0.0.64/26", allocation("node2"))
    claim(store, "10.0.0.128/26", host="node2")
    resources.delete_node(store, "node1")
    assert [entry.key for entry in store.list(AffinityQuery())] == [AffinityKey("node2", Cidr("10.0.0.128/26"))]
    assert [str(block.cidr) for block in read_blocks(store)] == ["10.0.0.128/26", "10.0.0.64/26"]
    with pytest.raises(CallerError, match=r"node 'node1' does not exist: known: node2$"):
        resources.delete_node(store, "node1")


def test_node_with_workloads_is_not_deleted(store: Recorder) -> None:
    """Addresses from blocks of other nodes count as well."""
    kinds.apply_node(store, "node1", {}, OPTIONS)
    claim(store, "10.0.0.64/26", allocation(), host="node2")
    with pytest.raises(
        CallerError, match=r"node 'node1' is in use: 1 addresses .* delete the workloads of 10\.0\.0\.\d+ first"
    ):
        resources.delete_node(store, "node1")


def test_long_lists_of_names_are_cut(store: Recorder) -> None:
    """An error does not list a cluster's thousands of nodes."""
    for number in range(25):
        kinds.apply_node(store, f"n{number:02}", {}, OPTIONS)
    with pytest.raises(CallerError) as caught:
        resources.require(store, "Node", "x")
    assert caught.value.details.endswith("n18, n19 and 5 more")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_pools_applied_key_by_key_at_the_same_time_never_overlap(store: Recorder, number: int) -> None:
    """The other process runs before each of the writes in turn. One of the two pools remains, complete and enabled."""
    refused = []

    def other() -> None:
        try:
            kinds.apply_all(NonAtomic(store), kinds.POOLS, [pool("b", "10.0.0.128/25")], OPTIONS)
        except CallerError as refusal:
            refused.append(refusal)

    interfering = Interfering(store, number, other)
    try:
        kinds.apply_all(NonAtomic(interfering), kinds.POOLS, [pool("a", "10.0.0.0/24")], OPTIONS)
    except CallerError as refusal:
        refused.append(refusal)
    assert len(refused) == (number < 3)
    assert all("overlaps IP pool" in refusal.details for refusal in refused)
    (remaining,) = resources.get(store, "IPPool")
    assert "disabled" not in remaining.spec or remaining.spec["disabled"] is False


def test_applying_again_enables_a_pool_that_stayed_disabled(store: Recorder) -> None:
    """The process that created the pool was killed before it enabled it."""
    interfering = Interfering(store, 2, _interrupt)
    with pytest.raises(KeyboardInterrupt):
        kinds.apply_all(NonAtomic(interfering), kinds.POOLS, [pool("a")], OPTIONS)
    assert stored_pool(store, "a").spec["disabled"] is True
    assert kinds.apply_all(NonAtomic(store), kinds.POOLS, [pool("a")], OPTIONS) == ["updated"]
    assert stored_pool(store, "a").spec.get("disabled", False) is False


def _interrupt() -> None:
    raise KeyboardInterrupt
