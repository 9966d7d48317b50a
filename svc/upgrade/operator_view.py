"""A deployment by manifests as it runs, and the operator's deployment that is to take its place."""

import copy
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from svc.admin import resources
from svc.admin.installation_resource import reconcile
from svc.admin.installation_resource.wanted import CONFIG_KEY, CONFIG_MAP, Wanted
from svc.admin.resources import POOL
from svc.datastore.open import open_backend
from svc.deploy.manifests import controllers, node
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.pod_parts import api_server_config_map
from svc.deploy.manifests.settings import (
    NONE,
    OPERATOR,
    ORCH,
    POLICY_V1,
    POLICY_V1BETA1,
    SYSTEM_NAMESPACE,
    Settings,
)
from svc.model.errors import CallerError
from svc.model.installation import KIND, NAME
from svc.model.resource import Resource
from svc.upgrade.bundle import container_of, version_of
from svc.upgrade.derived_installation import compare, derive, network_of, without_field
from svc.upgrade.manifest_procedure import flavour_of
from svc.upgrade.node_turns import Turn
from svc.upgrade.places import Place
from svc.upgrade.writer import Writer
from svc.values import dataclass

Json = dict[str, Any]

APPS: Final = "apps/v1"
DAEMON_SET, DEPLOYMENT, BUDGET = "DaemonSet", "Deployment", "PodDisruptionBudget"
LABEL, WAITING = "operator-node-migration", "pre-operator"
_MARK: Final = "CNI_NETWORK_CONFIG"  # the variable that the operator gives to its agent
_PROBE: Final = "svc-upgrade-probe"  # the name under which the server completes what a manifest says
_MOVED: Final = ("replicas", "updateStrategy")  # of a spec, which the move changes
_RESTARTED: Final = "restartedAt"


@dataclass(frozen=True, slots=True)
class Deployed:
    """What is found: DaemonSet of the operator, that of the manifests, and the sentences about what forbids the move."""

    new: Json | None
    former: Json | None
    problems: tuple[str, ...]


class OperatorView:
    """Reads of one cluster. Each method reads it again, except `deployed`, which is read once."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.deployed = _deployed(writer)

    @property
    def former_namespace(self) -> str:
        """The namespace of the former deployment; empty if it is gone."""
        return "" if self.deployed.former is None else str(self.deployed.former["metadata"]["namespace"])

    @property
    def namespace(self) -> str:
        """The namespace of the operator's deployment."""
        if self.deployed.new is not None:
            return str(self.deployed.new["metadata"]["namespace"])
        return f"{self._writer.names.plugin}-system" if self.former_namespace == SYSTEM_NAMESPACE else SYSTEM_NAMESPACE

    @property
    def turn(self) -> Turn:
        """The move from node to node."""
        names = self._writer.names
        former = Place(APPS, DAEMON_SET, self.former_namespace, names.daemon_set) if self.deployed.former else None
        agent = Place(APPS, DAEMON_SET, self.namespace, names.daemon_set)
        return Turn(f"{names.label_prefix}/{LABEL}", WAITING, agent, former)

    def settings(self, *, former: bool = False) -> Settings:
        """Return the settings of the operator's manifests, or of those that the cluster has."""
        live = self.deployed.former or self.deployed.new
        assert live is not None
        names, both = self._writer.names, (self.deployed.former, self.deployed.new)  # the former one loses it during the move
        return Settings(
            flavour_of(live, names) if former else OPERATOR,
            ORCH,
            container_of(live)["image"],
            names=names,
            profile=_profile(live),
            namespace=self.former_namespace if former else self.namespace,
            crds=NONE,
            api_version=self._api_version(),
            policy_api=self._policy_api(),
            routes=any(_has_routes(each) for each in both if each),
            surges=any((each["spec"]["updateStrategy"].get("rollingUpdate") or {}).get("maxSurge") for each in both if each),
        )

    def documents(self) -> list[Json]:
        """Return the objects of the operator's deployment."""
        return objects(self.settings())

    def copied(self) -> list[Json]:
        """Return the ConfigMap with the address of the API server, for the namespace of the operator, if pods have one now.

        A pod reads it in its own namespace only."""
        name = api_server_config_map(self._writer.names)
        live = self._writer.find(Place("v1", "ConfigMap", self.former_namespace, name)) if self.former_namespace else None
        if live is None:
            return []
        head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": self.namespace}}
        return [head | {field: live[field] for field in ("data", "binaryData") if live.get(field)}]

    def installation(self) -> Json | None:
        """Return the Installation of the cluster."""
        place = self.installation_place
        return self._writer.find(place) if self._writer.served(place) else None

    @property
    def installation_place(self) -> Place:
        """The place of the Installation."""
        return Place(self._writer.names.operator_api_version, KIND, "", NAME)

    def document(self) -> Json:
        """Return the Installation: that of the cluster, else the derived one. Raise ValueError if none can be derived."""
        place = self.installation_place
        head: Json = {"apiVersion": place.api_version, "kind": KIND, "metadata": {"name": NAME}}
        present = self.installation()
        if present is not None:
            return head | {"spec": present.get("spec") or {}}
        assert self.deployed.former is not None
        variables = {each["name"]: str(each.get("value") or "") for each in _environment(self.deployed.former)}
        return head | {"spec": derive(self.network(), self.pools(), variables, self._writer.names)}

    def network(self) -> Json:
        """Return the network list of the former deployment. Raise ValueError."""
        place = Place("v1", "ConfigMap", self.former_namespace, CONFIG_MAP)
        data = (self._writer.find(place) or {}).get("data") or {}
        try:
            return network_of(data.get(CONFIG_KEY) or "", self._writer.names)
        except ValueError as error:
            raise ValueError(f"{place}, key {CONFIG_KEY}: {error}") from error

    def pools(self) -> list[Resource]:
        """Return the pools of the datastore."""
        with closing(self._store()) as store:
            return list(resources.get(store, POOL))

    def rendered(self, spec: Json) -> Wanted:
        """Return what the operator makes of a spec in this cluster. Raise CallerError with each error."""
        with closing(self._store()) as store:
            cluster = reconcile.Cluster(
                self._writer.client, store, self._session(), self._writer.names, namespace=self.namespace
            )
            return reconcile.plan(cluster, spec).wanted

    def differences(self) -> tuple[list[str], list[str]]:
        """Return what the operator adds, and the sentences about what forbids the move."""
        if self.deployed.former is None:
            return [], []
        try:
            network, spec = self.network(), self.document()["spec"]
            wanted = self.rendered(spec)
        except (ValueError, CallerError) as error:
            text = error.as_text() if isinstance(error, CallerError) else str(error)
            return [], [text]
        names = self._writer.names
        found = compare(network, network_of(wanted.network, names), names)
        before = {each["name"]: each.get("value") for each in _environment(self.deployed.former)}
        added = [f"network list: {text}" for text in found.added]
        for workload in wanted.workloads[:1]:
            for name, entry in workload.variables.items():
                value = entry.get("value", entry.get("valueFrom"))
                added += [f"variable {name}: {before.get(name)!r} -> {value!r}"] if before.get(name) != value else []
        return added, [*found.changed, *self._edits()]

    def _edits(self) -> Iterator[str]:
        """Yield the differences of the former workloads from their manifests."""
        former = self.settings(former=True)
        for document in (node.daemon_set(former), controllers.deployment(former)):
            metadata = document["metadata"]
            place = Place(APPS, document["kind"], metadata["namespace"], metadata["name"])
            live = self._writer.find(place)
            if live is not None:
                expected = self._writer.dry_create(document | {"metadata": {**metadata, "name": _PROBE}})
                wanted, found = self._plain(expected), self._plain(live)
                wanted = {field: value for field, value in wanted.items() if field in found or field not in _MOVED}
                yield from without_field(str(place), wanted, found)

    def _plain(self, workload: Json) -> Json:
        """Return the spec without what the move itself changes, and without the mark of a restart."""
        spec = copy.deepcopy(workload["spec"])
        template = spec["template"]
        notes = template["metadata"].pop("annotations", None) or {}
        if kept := {key: value for key, value in notes.items() if not key.endswith(f"/{_RESTARTED}")}:
            template["metadata"]["annotations"] = kept
        template["metadata"].pop("creationTimestamp", None)
        if spec.get("replicas") == 0:
            del spec["replicas"]
        if self.turn.key in str(template["spec"].get("affinity")):
            del template["spec"]["affinity"]
            spec.pop("updateStrategy", None)
        found: Json = spec
        return found

    def _session(self) -> dict[str, str]:
        return {"kind": "orch", **self._writer.settings}

    def _store(self) -> Any:
        return open_backend(self._session(), Path(), self._writer.names, create=False)

    def _api_version(self) -> str:
        names = self._writer.names
        backing = Place(names.crd_api_version, POOL, "", "any")
        return "" if self._writer.served(backing) else names.api_version

    def _policy_api(self) -> str:
        is_served = self._writer.served(Place(POLICY_V1, BUDGET, SYSTEM_NAMESPACE, "any"))
        return POLICY_V1 if is_served else POLICY_V1BETA1


def _deployed(writer: Writer) -> Deployed:
    name = writer.names.daemon_set
    path = f"/apis/{APPS}/daemonsets"
    head: Json = {"apiVersion": APPS, "kind": DAEMON_SET}
    found = [head | each for each in writer.items(path, fieldSelector=f"metadata.name={name}")]
    new = [each for each in found if any(str(one["name"]) == _MARK for one in _environment(each))]
    former = [each for each in found if each not in new]
    problems = []
    if not found:
        problems.append(f"no DaemonSet {name} is in the cluster: svc was not installed by a manifest")
    for several in (new, former):
        if len(several) > 1:
            places = ", ".join(str(each["metadata"]["namespace"]) for each in several)
            problems.append(f"DaemonSet {name} is in several namespaces ({places}): remove what is not in use")
    return Deployed(new[0] if new else None, former[0] if former else None, tuple(problems))


def _environment(workload: Json) -> list[Json]:
    spec = workload["spec"]["template"]["spec"]
    return [each for one in (*(spec.get("initContainers") or ()), *spec["containers"]) for each in one.get("env") or ()]


def _has_routes(workload: Json) -> bool:
    return any(each["name"] == node.ROUTES for each in workload["spec"]["template"]["spec"]["containers"])


def _profile(workload: Json) -> str:
    """Return the names profile that the installer is given; empty without one."""
    spec = workload["spec"]["template"]["spec"]
    for each in spec.get("initContainers") or ():
        words: list[str] = each.get("args") or []
        if "--names" in words[:-1]:
            return str(words[words.index("--names") + 1])
    return ""


def version_in(workload: Json) -> str:
    """Return the version of the image of a workload."""
    return version_of(container_of(workload)["image"])
