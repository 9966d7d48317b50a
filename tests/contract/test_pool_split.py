"""Splitting a pool, on every datastore."""

import ipaddress
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from harness.datastores import set_ready
from harness.ipam import put_node, put_pool
from svc.admin.pool_split import SplitPool, split
from svc.datastore.api import Backend, Create, Delete, Entry, OutcomeUnknown, StoreError, Write
from svc.ipam.requests import Assign, Release
from svc.ipam.service import IpamService
from svc.model.errors import CallerError
from svc.model.keys import ResourceKey, ResourceQuery
from svc.model.pool import with_defaults
from svc.model.resource import Resource

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def pool(backend: Backend) -> Backend:
    """Make a pool with labels in a locked datastore."""
    put_pool(backend, "p", "10.65.0.0/24", natOutgoing=True)
    key = ResourceKey("IPPool", "p")
    backend.update(key, lambda pool: pool and replace(pool, metadata=pool.metadata | {"labels": {"zone": "a"}}))
    set_ready(backend, ready=False)
    return backend


def pools(backend: Backend) -> dict[str, str]:
    return {entry.value.name: entry.value.spec["cidr"] for entry in backend.list(ResourceQuery("IPPool"))}


def run(backend: Backend, number: int, name: str = "p") -> SplitPool:
    return split(backend, name, number, NOW)


class Failing:
    """A datastore whose write `number` fails. With `lost`, the write is carried out, and its answer is lost."""

    def __init__(self, backend: Backend, number: int, *, lost: bool = False) -> None:
        self._backend = backend
        self._left = number
        self._lost = lost
        self.instead: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        self._left -= 1
        if self._left == 0:
            self.instead()
            if self._lost:
                self._backend.write(writes, durable=durable)
                raise OutcomeUnknown("the answer was lost")
            raise StoreError("no answer")
        return self._backend.write(writes, durable=durable)


def test_parts_have_settings_and_labels_of_the_pool(pool: Backend) -> None:
    done = run(pool, 4)
    assert pools(pool) == {f"split-p-{index}": f"10.65.0.{64 * index}/26" for index in range(4)}
    assert [part.name for part in done.parts] == list(pools(pool))
    part = pool.get(ResourceKey("IPPool", "split-p-1")).value
    assert (part.spec["natOutgoing"], part.labels) == (True, {"zone": "a"})
    assert part.metadata["uid"]


def test_addresses_stay_and_can_be_released(backend: Backend) -> None:
    """The blocks are those of before: new addresses come from them, and old ones go."""
    put_pool(backend, "p", "10.65.0.0/24")
    put_node(backend, "node1")
    before = IpamService(backend, "node1")
    (first,) = before.assign(Assign("h1", {"node": "node1"})).addresses
    set_ready(backend, ready=False)
    run(backend, 2)
    set_ready(backend)
    after = IpamService(backend, "node1")
    (second,) = after.assign(Assign("h2", {"node": "node1"})).addresses
    assert first != second
    assert after.addresses_of("h1") == (first,)
    assert after.release(Release("h1"))
    assert after.addresses_of("h1") == ()


def test_many_parts_need_several_transactions(backend: Backend) -> None:
    put_pool(backend, "p", "10.64.0.0/16")
    set_ready(backend, ready=False)
    run(backend, 256)
    found = pools(backend)
    assert len(found) == 256
    assert found["split-p-255"] == "10.64.255.0/24"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "NUMBER = 0 is not a power of two"),
        (1, "NUMBER = 1 is not a power of two"),
        (3, "NUMBER = 3 is not a power of two"),
        (-2, "NUMBER = -2 is not a power of two"),
        (8, "NUMBER = 8 is more than 4 blocks of /26"),
    ],
)
def test_bad_number_changes_nothing(pool: Backend, number: int, words: str) -> None:
    with pytest.raises(CallerError, match=words) as caught:
        run(pool, number)
    assert "from 2 to 4" in caught.value.details
    assert pools(pool) == {"p": "10.65.0.0/24"}


def test_datastore_must_be_locked(pool: Backend) -> None:
    set_ready(pool)
    with pytest.raises(CallerError, match="the datastore is not locked"):
        run(pool, 2)
    assert pools(pool) == {"p": "10.65.0.0/24"}


def test_unknown_pool_is_an_error(pool: Backend) -> None:
    with pytest.raises(CallerError, match="IP pool 'q' does not exist"):
        run(pool, 2, "q")


def test_taken_name_changes_nothing(pool: Backend) -> None:
    put_pool(pool, "split-p-1", "10.99.0.0/24")
    with pytest.raises(CallerError, match="IP pool 'split-p-1' exists already, with other settings"):
        run(pool, 2)
    assert pools(pool) == {"p": "10.65.0.0/24", "split-p-1": "10.99.0.0/24"}


def test_failed_write_changes_nothing(pool: Backend) -> None:
    for number in [1] if pool.atomic else range(1, 6):
        failing: Backend = Failing(pool, number)  # type: ignore[assignment]
        with pytest.raises(StoreError, match="no answer"):
            run(failing, 4)
        assert pools(pool) == {"p": "10.65.0.0/24"}


def test_lost_answer_of_the_deletion_is_a_success(pool: Backend) -> None:
    """The pools in its place must not be deleted then."""
    failing: Backend = Failing(pool, 1 if pool.atomic else 3, lost=True)  # type: ignore[assignment]
    run(failing, 2)
    assert sorted(pools(pool)) == ["split-p-0", "split-p-1"]


def test_lost_answer_of_a_creation_leaves_nothing(pool: Backend) -> None:
    """It seemed to fail, so the split is undone. In one transaction, the answer is that of the whole split."""
    failing: Backend = Failing(pool, 1, lost=True)  # type: ignore[assignment]
    if pool.atomic:
        run(failing, 2)
        assert sorted(pools(pool)) == ["split-p-0", "split-p-1"]
        return
    with pytest.raises(OutcomeUnknown):
        run(failing, 2)
    assert pools(pool) == {"p": "10.65.0.0/24"}


def test_pool_that_another_writer_deletes_is_not_split(pool: Backend) -> None:
    """Nothing was created in its place, so the split is no success."""
    failing = Failing(pool, 1 if pool.atomic else 2)
    failing.instead = lambda: pool.write([Delete(ResourceKey("IPPool", "p"))])
    with pytest.raises(StoreError):
        run(failing, 2)  # type: ignore[arg-type]
    assert pools(pool) == {}


class Interrupted:
    """A datastore that calls `instead` before write `number`."""

    def __init__(self, backend: Backend, number: int, instead: Callable[[], object]) -> None:
        self._backend = backend
        self._left = number
        self._instead = instead

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def write(self, writes: Sequence[Write], *, durable: bool = False) -> Sequence[Entry | None]:
        self._left -= 1
        if self._left == 0:
            self._instead()
        return self._backend.write(writes, durable=durable)


def put_part(pool: Backend, index: int) -> ResourceKey:
    """Create one of four parts, as another split does."""
    spec = pool.get(ResourceKey("IPPool", "p")).value.spec | {"cidr": f"10.65.0.{64 * index}/26"}
    part = with_defaults(Resource("IPPool", {"name": f"split-p-{index}"}, spec))
    key = ResourceKey("IPPool", part.name)
    pool.write([Create(key, part)])
    return key


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("number", [1, 2, 3])
def test_two_splits_at_once_lose_no_pool(pool: Backend, number: int) -> None:
    """Another split of the same pool into the same parts runs between two writes. Both succeed."""
    backend: Backend = Interrupted(pool, number, lambda: run(pool, 4))  # type: ignore[assignment]
    run(backend, 4)
    if number == 1 or not pool.atomic:
        assert sorted(pools(pool)) == [f"split-p-{index}" for index in range(4)]


def test_split_into_other_parts_at_once_loses_no_pool(pool: Backend) -> None:
    """The one that fails deletes only what it has created."""

    def split_otherwise() -> None:
        with suppress(CallerError):
            run(pool, 2)

    backend: Backend = Interrupted(pool, 1 if pool.atomic else 2, split_otherwise)  # type: ignore[assignment]
    with suppress(CallerError):
        run(backend, 4)
    found = pools(pool)
    assert covered(found) == 256, found


def test_rollback_keeps_the_pools_of_another_split(pool: Backend) -> None:
    """The other split has created them first, and goes on."""
    for index in range(2):
        put_part(pool, index)
    failing: Backend = Failing(pool, 1)  # type: ignore[assignment]
    with pytest.raises(StoreError, match="no answer"):
        run(failing, 4)
    assert sorted(pools(pool)) == ["p", "split-p-0", "split-p-1"]


def test_rollback_of_another_split_is_made_good(pool: Backend) -> None:
    """The other one has created a pool that this one has found. It fails, and deletes the pool."""
    key = put_part(pool, 0)
    backend: Backend = Interrupted(pool, 1, lambda: pool.write([Delete(key)]))  # type: ignore[assignment]
    run(backend, 4)
    assert sorted(pools(pool)) == [f"split-p-{index}" for index in range(4)]


def test_interrupted_split_changes_nothing(backend: Backend) -> None:
    put_pool(backend, "p", "10.64.0.0/16")
    set_ready(backend, ready=False)
    interrupted: Backend = Interrupted(backend, 2, interrupt)  # type: ignore[assignment]
    with pytest.raises(CallerError, match="interrupted"):
        run(interrupted, 256)
    assert list(pools(backend)) == ["p"]


def test_interrupted_repetition_names_the_pools_of_the_earlier_split(pool: Backend) -> None:
    for index in range(2):
        put_part(pool, index)
    interrupted: Backend = Interrupted(pool, 1, interrupt)  # type: ignore[assignment]
    with pytest.raises(CallerError, match="interrupted") as stop:
        run(interrupted, 4)
    assert "split-p-0, split-p-1 of an earlier split stay: repeat the split to complete it" in stop.value.details
    assert sorted(pools(pool)) == ["p", "split-p-0", "split-p-1"]


def covered(found: dict[str, str]) -> int:
    """Return the number of addresses in these pools, which do not overlap."""
    networks = [ipaddress.ip_network(cidr) for cidr in found.values()]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(networks, 2)), found
    return sum(network.num_addresses for network in networks)


def test_repetition_completes_a_killed_split(pool: Backend) -> None:
    run(pool, 2)
    parts = [pool.get(ResourceKey("IPPool", f"split-p-{index}")).value for index in range(2)]
    pool.write([Delete(ResourceKey("IPPool", "split-p-1"))])
    old = Resource("IPPool", {"name": "p", "labels": {"zone": "a"}}, parts[0].spec | {"cidr": "10.65.0.0/24"})
    pool.write([Create(ResourceKey("IPPool", "p"), old)])
    run(pool, 2)
    assert sorted(pools(pool)) == ["split-p-0", "split-p-1"]
    assert pool.get(ResourceKey("IPPool", "split-p-0")).value.metadata["uid"] == parts[0].metadata["uid"]


def test_long_names_are_cut(backend: Backend) -> None:
    """An object of Kubernetes has a name of at most 253 characters."""
    name = "p" * 250
    put_pool(backend, name, "10.65.0.0/24")
    set_ready(backend, ready=False)
    done = run(backend, 2, name)
    assert [len(part.name) for part in done.parts] == [247, 247]
    assert sorted(pools(backend)) == sorted(part.name for part in done.parts)
