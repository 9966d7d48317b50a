"""The move of a large datastore: nothing is lost, and it takes at most twice the time of the same bare requests."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from harness import etcd
from harness.datastores import EtcdSite, OrchSite, set_ready
from harness.ipam import holdings
from harness.kube import running
from harness.large_cluster import LargeCluster
from harness.move_procedure import MoveProcedure
from harness.move_sites import Sites
from harness.orch import PODS, open_store
from svc.admin.ipam_check.observation import Place
from svc.datastore.orch.client import STRATEGIC_PATCH, Client
from svc.datastore.orch.parallel import ParallelWriter
from svc.model.custom_resources import CustomResourceCodec, kind_plural
from svc.model.ipam import Handle
from svc.model.keys import AffinityKey, BlockKey, HandleKey, Key
from svc.model.kv_codec import Value
from svc.model.object_metadata import ApiGroup
from svc.move import marks, steps
from svc.names import DEFAULT
from svc.upgrade.step import Step
from svc.upgrade.step_runner import StepRunner

CONNECTIONS = 16
PER_NODE = 60
FACTOR = 2.0


class Unwired(LargeCluster):
    """Pods whose endpoints are only in etcd."""

    def _pod(self, pattern: Any, node: int, number: int) -> tuple[str, Any]:
        key, pod = super()._pod(pattern, node, number)
        notes = pod["metadata"]["annotations"]
        return key, pod | {"metadata": pod["metadata"] | {"annotations": {"padding": notes["padding"]}}}


@pytest.fixture(
    params=[
        pytest.param(50, marks=[pytest.mark.server, pytest.mark.long]),
        pytest.param(500, marks=[pytest.mark.server, pytest.mark.long]),
    ],
    ids=["3000", "30000"],
)
def cluster(request: pytest.FixtureRequest) -> LargeCluster:
    return Unwired(request.param, PER_NODE)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[EtcdSite, OrchSite]]:
    """Return servers of its own, which the objects of other tests do not slow down."""
    with running(tmp_path) as kube, etcd.cluster(tmp_path) as member:
        yield EtcdSite(member), OrchSite(kube, tmp_path)


@pytest.fixture
def sites(cluster: LargeCluster, servers: tuple[EtcdSite, OrchSite], tmp_path: Path) -> Iterator[Sites]:
    with ExitStack() as stack:
        etcd_site, kube = servers[0], servers[1].kube
        store = stack.enter_context(closing(etcd_site.open()))
        target = stack.enter_context(closing(open_store(kube, tmp_path)))
        set_ready(store)
        cluster.fill_api(kube)
        cluster.fill_store(store)
        client = target.client
        yield Sites(Place(store, DEFAULT, client), Place(target, DEFAULT, client, pods_are_endpoints=True), tmp_path)


def seconds(step: Callable[[], object]) -> float:
    begin = time.monotonic()
    step()
    return time.monotonic() - begin


def in_parallel(send: Callable[[Any], object], items: list[Any]) -> None:
    with closing(ParallelWriter(CONNECTIONS, "bare")) as pool:
        pool.map(send, items)


def bare_posts(client: Client, documents: dict[Key, Value]) -> float:
    """Return the time for as many POSTs of the same objects, with other names. They are deleted afterwards."""
    group = ApiGroup(DEFAULT, DEFAULT.crd_api_version)
    codec, bodies = CustomResourceCodec(group), list[tuple[str, Any]]()
    for key, value in documents.items():
        if isinstance(key, HandleKey | BlockKey | AffinityKey):
            body = codec.encode(key, value)
            body["metadata"]["name"] = f"bare-{body['metadata']['name']}"
            bodies.append((f"{group.root}/{kind_plural(body['kind'])}", body))
    spent = seconds(lambda: in_parallel(lambda item: client.create(*item), bodies))
    in_parallel(lambda item: client.delete(f"{item[0]}/{item[1]['metadata']['name']}"), bodies)
    return spent


def bare_patches(client: Client, cluster: LargeCluster) -> float:
    """Return the time for a PATCH of each pod, with annotations as long as those of an endpoint."""
    names = [cluster.pod_name(*divmod(number, PER_NODE)) for number in range(cluster.pods)]
    body = {"metadata": {"annotations": {"bare": "x" * 150}}}
    return seconds(lambda: in_parallel(lambda name: client.patch(f"{PODS}/{name}/status", body, STRATEGIC_PATCH), names))


def test_a_large_datastore_moves(sites: Sites, cluster: LargeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    client = sites.kube.client
    assert client is not None
    held = holdings(sites.etcd.backend)
    marks.lock(sites.etcd, sites.kube, "run")
    locked = time.monotonic()
    steps.admit(sites.etcd, sites.kube, "run", sites.archive)
    begin = time.monotonic()
    documents = steps.export_at_one_revision(sites.etcd).decoded(DEFAULT)
    steps.import_(documents, sites.kube, CONNECTIONS)
    imported = time.monotonic() - begin
    report = steps.move_endpoints(documents, sites.kube, CONNECTIONS)
    moved = time.monotonic() - begin
    again = steps.export_at_one_revision(sites.etcd).decoded(DEFAULT)
    steps.require_equal(again, sites.kube)
    steps.enable_pools(documents, sites.kube)
    steps.finish(sites.etcd, sites.kube, "run")
    unlocked = time.monotonic() - locked
    assert (report.kept, report.left) == (cluster.pods, {})
    assert holdings(sites.kube.backend) == held
    assert sum(isinstance(value, Handle) for value in documents.values()) == cluster.pods
    bare = bare_posts(client, documents) + bare_patches(client, cluster)
    print(
        f"{cluster.pods} allocations: steps 3 and 4 in {moved:.1f} s (import {imported:.1f} s), the same bare requests in "
        f"{bare:.1f} s: factor {moved / bare:.2f}; locked for {unlocked:.1f} s, without the wait for calls in flight"
    )
    assert moved <= FACTOR * bare


def test_a_large_datastore_moves_by_the_procedure(
    sites: Sites,
    servers: tuple[EtcdSite, OrchSite],
    cluster: LargeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps that write read all objects back as well."""
    monkeypatch.setattr(marks, "IN_FLIGHT_SECONDS", 0.0)
    carry_out, spent = StepRunner.carry_out, dict[str, float]()

    def timed(self: StepRunner, step: Step) -> None:
        spent[step.name] = seconds(lambda: carry_out(self, step))

    procedure = MoveProcedure(sites, *servers, tmp_path)
    planned = seconds(lambda: procedure.succeeds("plan"))
    held = holdings(sites.etcd.backend)
    with monkeypatch.context() as patch, suppress(AssertionError):
        patch.setattr(StepRunner, "carry_out", timed)
        procedure.succeeds("apply", "--timeout", "0s")
    assert holdings(sites.kube.backend) == held
    assert marks.has_arrived(sites.kube, (marks.mark_of(DEFAULT, marks.present(sites.kube)) or pytest.fail("no mark")).run)
    documents = steps.export_at_one_revision(sites.etcd).decoded(DEFAULT)
    client = sites.kube.client
    assert client is not None
    bare = bare_posts(client, documents) + bare_patches(client, cluster)
    moved = spent["import-documents"] + spent["pod-endpoints"]
    locked = sum(spent[name] for name in spent if name not in ("remove-references", "moved-nodes", "restore-references"))
    print(
        f"{cluster.pods} allocations: plan in {planned:.1f} s; steps 3 and 4 in {moved:.1f} s, the same bare requests in "
        f"{bare:.1f} s: factor {moved / bare:.2f}; locked for {locked:.1f} s, without the wait for calls in flight"
    )
    assert planned <= 60
    assert moved <= FACTOR * bare
