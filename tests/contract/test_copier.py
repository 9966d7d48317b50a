"""Parts of the controllers in this process, on real servers: the Lease of the leader, and the threads of one controller."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.api_proxy import ApiProxy, Fate, Order
from harness.controllers import LEASE, Cluster, cluster
from harness.datastores import EtcdSite, session, set_ready
from harness.kube import Kube
from harness.polling import eventually, wait_until
from harness.running_controller import Clock, Running, running
from svc.controllers.copies.copied_kind import Translation, Untranslatable
from svc.controllers.copies.copier import Copier
from svc.controllers.copies.network_policies import NetworkPolicies
from svc.controllers.copies.profiles import AccountProfiles
from svc.controllers.guarded_store import LeaderStore
from svc.datastore.api import Create, NotFound
from svc.datastore.etcd.store import EtcdStore
from svc.datastore.orch.client import Client
from svc.datastore.orch.watch import PagedWatch
from svc.leader.election import LEASE_SECONDS, Election, NotLeading
from svc.leader.leader_lease import LeaderLease
from svc.model.keys import ResourceKey
from svc.model.resource import Resource
from svc.names import DEFAULT

pytestmark = pytest.mark.server

EXPIRED = b'{"kind":"Status","status":"Failure","reason":"Expired","message":"too old","code":410}'
REFUSED = b'{"kind":"Status","status":"Failure","reason":"Forbidden","message":"no right","code":403}'
KEY = ResourceKey("Profile", "ksa.c-a.web")


@pytest.fixture
def controllers(kube: Kube, tmp_path: Path) -> Iterator[Cluster]:
    """Return the API server with a namespace for the test."""
    with cluster(kube, tmp_path, {}) as made:
        made.make_namespace("c-a")
        yield made


@pytest.fixture
def store(etcd_site: EtcdSite) -> Iterator[EtcdStore]:
    """Return a session with an etcd that is ready."""
    with session(etcd_site) as made:
        assert isinstance(made, EtcdStore)
        set_ready(made)
        yield made
    etcd_site.clear()


# the Lease


def test_lease_passes_from_one_process_to_another(controllers: Cluster, client: Client) -> None:
    clock = Clock()
    first, second = (Election(name, clock) for name in ("first", "second"))
    lease, other = (LeaderLease(client, DEFAULT.controllers, election) for election in (first, second))
    lease.attempt()
    other.attempt()
    assert (first.leads, second.leads) == (True, False)
    clock.now += LEASE_SECONDS
    other.attempt()
    lease.attempt()
    assert (first.leads, second.leads) == (False, True)
    other.release()
    assert not second.leads
    lease.attempt()
    assert first.leads
    spec = controllers.kube.call("GET", LEASE)["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("first", 3, LEASE_SECONDS)


def test_release_leaves_the_lease_of_another_holder(controllers: Cluster, client: Client) -> None:
    lease = LeaderLease(client, DEFAULT.controllers, Election("first"))
    lease.release()
    lease.attempt()
    controllers.take_lease("another")
    lease.release()
    assert controllers.kube.call("GET", LEASE)["spec"]["holderIdentity"] == "another"


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_faster_process_wins(method: str, controllers: Cluster, client: Client, proxy: ApiProxy) -> None:
    election = Election("first")
    lease = LeaderLease(client, DEFAULT.controllers, election)
    if method == "PUT":
        lease.attempt()
        election.resign()
    proxy.arm(Order(Fate.ANSWERED, f"^{method} .*leases", status=409))
    lease.attempt()
    assert not election.leads


def test_lost_reply_to_a_renewal_is_not_a_renewal(controllers: Cluster, client: Client, proxy: ApiProxy) -> None:
    """The next attempt finds the process as the holder."""
    election = Election("first")
    lease = LeaderLease(client, DEFAULT.controllers, election)
    proxy.arm(Order(Fate.REPLY_LOST, "^POST .*leases"))
    with pytest.raises(Exception, match="does not answer"):
        lease.attempt()
    assert not election.leads
    lease.attempt()
    assert election.leads


def test_only_the_leader_writes(store: EtcdStore) -> None:
    election = Election("first")
    guarded = LeaderStore(store, election)
    write = Create(KEY, Resource("Profile", {"name": KEY.name}))
    with pytest.raises(NotLeading):
        guarded.write([write])
    with pytest.raises(NotFound):
        store.get(KEY)
    election.renewed(election.clock())
    guarded.write([write])
    assert store.get(KEY).value.name == KEY.name


# the threads of a controller


@pytest.fixture
def run(client: Client, store: EtcdStore) -> Iterator[Callable[..., Running]]:
    """Return a function that starts the controller of service accounts, or of another kind."""
    with ExitStack() as stack:

        def start(kind: Any = None, *, leads: bool = True) -> Running:
            wanted = kind or AccountProfiles(DEFAULT)
            return stack.enter_context(running(client, store, lambda shared: Copier(wanted, shared), leads=leads))

        yield start


def labels(store: EtcdStore) -> Any:
    entry = store.find(KEY)
    return entry and entry.value.spec["labelsToApply"].get("pcsa.app")


def test_process_that_does_not_lead_writes_later(
    run: Callable[..., Running], controllers: Cluster, store: EtcdStore, proxy: ApiProxy
) -> None:
    found = run(leads=False)
    controllers.make_account("c-a", "web", app="web")
    wait_until(lambda: found.part.is_ready)
    assert store.find(KEY) is None
    found.lead()
    eventually(lambda: labels(store), lambda found: found == "web")


def test_list_that_expires_between_pages_begins_again(
    run: Callable[..., Running], controllers: Cluster, store: EtcdStore, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.datastore.orch.watch.SMALL_PAGE", 2)
    for number in range(5):
        controllers.make_account("c-a", f"a{number}")
    proxy.arm(Order(Fate.ANSWERED, "^GET .*serviceaccounts.*continue=", status=410, body=EXPIRED))
    run()
    keys = [ResourceKey("Profile", f"ksa.c-a.a{number}") for number in range(5)]
    wait_until(lambda: all(store.find(key) for key in keys))


def test_expired_watch_lists_again(
    run: Callable[..., Running], controllers: Cluster, store: EtcdStore, proxy: ApiProxy
) -> None:
    controllers.make_account("c-a", "web", app="web")
    copier = run()
    eventually(lambda: labels(store), lambda found: found == "web")
    proxy.arm(Order(Fate.ANSWERED, "^GET .*serviceaccounts.*watch=true", status=410, body=EXPIRED))
    proxy.hang_up()
    controllers.kube.forget("serviceaccounts/c-")
    wait_until(lambda: store.find(KEY) is None)
    assert copier.failures == []


def test_without_the_right_to_watch_lists_are_repeated_slowly(controllers: Cluster, client: Client, proxy: ApiProxy) -> None:
    """A successful list must not reset the delay."""
    proxy.arm(Order(Fate.ANSWERED, "^GET .*watch=true", times=1000, status=403, body=REFUSED))
    watch = PagedWatch(client, AccountProfiles.path)
    delays: list[float] = []
    watch._closed = _Recorded(delays)
    for _ in watch.steps():
        if len(delays) >= 8:
            watch.close()
    assert max(delays) > 4


class _Recorded(threading.Event):
    """An event that records how long it is waited for, and does not wait."""

    def __init__(self, delays: list[float]) -> None:
        super().__init__()
        self._delays = delays

    def wait(self, timeout: float | None = None) -> bool:
        self._delays.append(timeout or 0.0)
        return self.is_set()


@pytest.mark.parametrize("fate", [Fate.NEVER_SENT, Fate.ANSWERED])
def test_failed_item_is_tried_again(
    fate: Fate, run: Callable[..., Running], controllers: Cluster, store: EtcdStore, proxy: ApiProxy
) -> None:
    proxy.arm(Order(fate, "^GET .*serviceaccounts/web", status=404, times=2, body=b"404 page not found"))
    controllers.make_account("c-a", "web", app="web")
    run()
    eventually(lambda: labels(store), lambda found: found == "web")


def test_copy_that_another_leader_has_written_is_not_overwritten(
    run: Callable[..., Running],
    controllers: Cluster,
    client: Client,
    store: EtcdStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """This process may have been paused after it read the original, which is old then."""
    controllers.make_account("c-a", "web", app="web")
    get, others = (
        client.get,
        iter([Create(KEY, Resource("Profile", {"name": KEY.name}, {"labelsToApply": {"pcsa.app": "new"}}))]),
    )

    def get_slowly(path: str, **params: str) -> Any:
        found = get(path, **params)
        if path.endswith("/web") and (write := next(others, None)):
            store.write([write])
        return found

    monkeypatch.setattr(client, "get", get_slowly)
    run()
    wait_until(lambda: "ksa.c-a.web is tried again in 1 s: Profile 'ksa.c-a.web' was changed" in caplog.text)
    eventually(lambda: labels(store), lambda found: found == "web")


def test_rule_without_equivalent_is_reported(
    run: Callable[..., Running],
    controllers: Cluster,
    store: EtcdStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A newer Kubernetes may have protocols that svc does not know."""
    monkeypatch.setattr("svc.controllers.copies.network_policies._PROTOCOLS", ("TCP",))
    controllers.make_policy("c-a", "p", ingress=[{"ports": [{"port": 1, "protocol": "SCTP"}]}, {"ports": [{"port": 1}]}])
    run(NetworkPolicies(DEFAULT))
    key = ResourceKey("NetworkPolicy", "knp.default.p", "c-a")
    wait_until(lambda: "c-a/knp.default.p lacks a rule: ingress[0]: protocol 'SCTP' is not one of TCP" in caplog.text)
    assert len(store.get(key).value.spec["ingress"]) == 1


def test_object_without_equivalent_is_tried_again(
    run: Callable[..., Running], controllers: Cluster, store: EtcdStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Its copy stays as it was."""
    store.write([Create(KEY, Resource("Profile", {"name": KEY.name}, {"labelsToApply": {"pcsa.app": "old"}}))])
    controllers.make_account("c-a", "web", app="web")
    kind = _Refusing(DEFAULT)
    run(kind)
    wait_until(lambda: "ksa.c-a.web is tried again in 1 s: no equivalent" in caplog.text)
    assert labels(store) == "old"
    kind.refuses = False
    eventually(lambda: labels(store), lambda found: found == "web")


class _Refusing(AccountProfiles):
    """Service accounts that have no equivalent until the test allows it."""

    refuses = True

    def translate(self, original: Any) -> Translation:
        if self.refuses:
            raise Untranslatable("no equivalent")
        return super().translate(original)


def test_bug_in_a_thread_ends_the_process(
    run: Callable[..., Running], controllers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = AccountProfiles(DEFAULT)
    monkeypatch.setattr(kind, "key", lambda _: 1 / 0)
    controllers.make_account("c-a", "web")
    copier = run(kind)
    wait_until(lambda: bool(copier.failures))
    assert copier.failures == ["the watch of /api/v1/serviceaccounts: ZeroDivisionError('division by zero')"]
