"""Work for each controller of svc-controllers: what it finds, and what must come of it."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from harness.controllers import Cluster
from harness.driven_part import World
from harness.installations import AGENT, CONTROLLERS, FOUR, InstalledCluster, host_local
from harness.ipam import block_of, blocks, handles, put, put_block, put_pool
from harness.orch import PODS, put_pod
from harness.polling import eventually, wait_until
from harness.services import Services
from svc._core.cidr import Cidr
from svc.admin.resources import CLUSTER
from svc.datastore.api import Delete, NotFound
from svc.ipam import blocks as block_model
from svc.model.controllers_configuration import KEY
from svc.model.endpoint import Workload, endpoint, endpoint_key
from svc.model.ipam import Affinity, Attribute, Handle
from svc.model.keys import VIRTUAL, AffinityKey, HandleKey, ResourceKey
from svc.model.pod_endpoint import policy_facts
from svc.model.resource import Resource
from svc.names import DEFAULT

SHORT_TIMES = ",".join(
    (
        "svc.controllers.gone_nodes:QUIET_SECONDS=1",
        "svc.controllers.node.addresses.part:_LOOK_SECONDS=0.2",
        "svc.controllers.node.addresses.part:_LOST_SECONDS=0.5",
        "svc.controllers.node.ipam_handles:CONFIRM_SECONDS=1",
        "svc.controllers.node.ipam_blocks:CONFIRM_SECONDS=1",
    )
)
NAMESPACE = "c-a"
POLICY = ResourceKey("NetworkPolicy", "knp.default.deny", NAMESPACE)

_MERGE = "application/merge-patch+json"
_LIVE, _LEAKED, _EMPTY = f"{DEFAULT.network}.live", f"{DEFAULT.network}.gone", f"{DEFAULT.network}.none"
_IDLE_BLOCK = "10.66.0.192/26"
_FOR_SERVICES = "10.67.0.0/30"
_LONG_AGO = "2020-01-01T00:00:00Z"


class Work:
    """What the controllers do in one cluster. Each method is the work of one of them, while it runs."""

    def __init__(self, world: World, services: Services, cluster: Cluster, installed: InstalledCluster) -> None:
        self._world, self._services, self._cluster, self._installed = world, services, cluster, installed
        self._store, self._kube = world.store, world.kube

    def prepare(self) -> None:
        """Make everything that the controllers find at their start."""
        world, store = self._world, self._store
        self._cluster.make_namespace(NAMESPACE, team="red")
        self._cluster.make_account(NAMESPACE, "web", app="web")
        self._cluster.make_policy(NAMESPACE, "deny")
        self._pod = put_pod(self._kube, "web")
        put_pool(store, "lb4", _FOR_SERVICES, blockSize=30, allowedUses=["LoadBalancer"])
        put_block(store, _FOR_SERVICES, "virtual:other")
        put(store, AffinityKey("other", Cidr(_FOR_SERVICES), VIRTUAL), Affinity())
        world.set_cooldown(0)
        world.take("node1", _LIVE)
        world.take("node1", _LEAKED, namespace="default", pod="gone")
        put(store, HandleKey(_EMPTY), Handle({_IDLE_BLOCK: 1}))
        block = put_block(store, _IDLE_BLOCK, "host:node1")
        block_model.assign(block.value, Attribute(released_at=_LONG_AGO))
        put(store, block.key, block.value)
        put(store, AffinityKey("node1", Cidr(_IDLE_BLOCK)), Affinity())
        world.add_node("node2")
        world.claim("node2")
        world.take("node2", "net.a")
        world.free("node2", "net.a")

    def configuration(self) -> None:
        """Create the settings, and show which are in force. Every process does this."""

        def status() -> Any:
            found = self._find(KEY)
            return found and found.status

        wait_until(lambda: "runningConfig" in (status() or {}))

    def policy(self) -> None:
        wait_until(lambda: self._find(POLICY) is not None)

    def namespace(self) -> None:
        self._profile(f"kns.{NAMESPACE}", "pcns.team", "red")
        self._cluster.label_namespace(NAMESPACE, team="blue")
        self._profile(f"kns.{NAMESPACE}", "pcns.team", "blue")

    def serviceaccount(self) -> None:
        self._profile(f"ksa.{NAMESPACE}.web", "pcsa.app", "web")

    def workloadendpoint(self) -> None:
        """Relabel a pod whose endpoint an ADD has written."""
        workload = Workload("c1", "web", "default")
        key = endpoint_key(DEFAULT, "node1", workload, "eth0")
        spec = {"ipNetworks": ["10.0.0.1/32"], "interfaceName": "svc1", "mac": "02:00:00:00:00:01"}
        facts = policy_facts(DEFAULT, self._pod)
        put(self._store, key, endpoint(DEFAULT, key, "node1", workload, "eth0", spec=spec, facts=facts))
        self._kube.call("PATCH", f"{PODS}/web", {"metadata": {"labels": {"app": "other"}}}, _MERGE)
        wait_until(lambda: self._store.get(key).value.labels.get("app") == "other")

    def node(self) -> None:
        """Switch on what is off at first, then revert an edit, then delete a node."""
        self._configure(leakGracePeriod="1s", hostEndpoint={"autoCreate": "Enabled"})
        hep = ResourceKey("HostEndpoint", "node1-auto-hep")
        wait_until(lambda: self._find(hep) is not None)
        put(self._store, hep, replace(self._store.get(hep).value, spec={"node": "node1", "interfaceName": "eth9"}))
        wait_until(lambda: self._store.get(hep).value.spec["interfaceName"] == "*")
        wait_until(lambda: _IDLE_BLOCK not in blocks(self._store))
        wait_until(lambda: handles(self._store).keys().isdisjoint((_LEAKED, _EMPTY)))
        self._world.delete_node("node2")
        left = ResourceKey("HostEndpoint", "node2-auto-hep")
        wait_until(lambda: self._find(left) is None and not self._world.is_claimed("node2"))
        wait_until(lambda: self._find(ResourceKey("Node", "node2")) is None)
        wait_until(lambda: "host:node2" not in {block.affinity for block in blocks(self._store).values()})
        assert _LIVE in handles(self._store)

    def loadbalancer(self) -> None:
        """Serve a service from a block that another host does not need any more, and release its address again."""
        self._services.make()
        (address,) = eventually(self._services.shown, bool)
        handle = self._services.handle()
        assert handle in handles(self._store)
        assert block_of(self._store, address).affinity == "virtual:load-balancer"
        self._services.change(type="ClusterIP")
        wait_until(lambda: handle not in handles(self._store))

    def prepare_operator(self) -> None:
        """Leave the datastore to the operator, which initialises it."""
        with suppress(NotFound):
            self._store.write([Delete(CLUSTER)])

    def operator(self) -> None:
        """Bring an Installation about, then replace its pool, of which a block is left."""
        installed = self._installed
        installed.make(*FOUR)
        installed.create(host_local({"ipPools": [{"cidr": "10.71.0.0/24", "name": "listed"}]}))
        wait_until(lambda: installed.environment(FOUR[-1]) == {"USE_POD_CIDR": "true"})
        wait_until(lambda: installed.conditions().get("Progressing") == "True")
        put_block(self._store, "10.71.0.0/26", "host:node1")
        put(self._store, AffinityKey("node1", Cidr("10.71.0.0/26")), Affinity())
        installed.change(host_local({"ipPools": [{"cidr": "10.72.0.0/24", "name": "next"}], "mtu": 1400}))
        wait_until(lambda: {"next"} == installed.pools().keys() - {"p", "lb4"})
        installed.await_ready(AGENT, CONTROLLERS)

    def _find(self, key: ResourceKey) -> Resource | None:
        entry = self._store.find(key)
        return entry.value if entry else None

    def _profile(self, name: str, label: str, text: str) -> None:
        def given() -> Any:
            found = self._find(ResourceKey("Profile", name))
            return found and found.spec["labelsToApply"].get(label)

        wait_until(lambda: given() == text)

    def _configure(self, **node: Any) -> None:
        """Change the section of controller `node` as an administrator does."""

        def changed(found: Resource | None) -> Resource:
            assert found is not None
            return replace(found, spec={**found.spec, "controllers": {"node": node}})

        self._store.update(KEY, changed)
