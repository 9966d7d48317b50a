"""Bring about what an Installation asks for: pools, network list and environments. svcctl and the controller share this.

Everything is read and checked before the first write. The pools come first: with the network list, pods may start. Each write
is a compare-and-swap or a server-side apply, so that a repetition completes what a failure has interrupted, and otherwise
changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from svc.admin import kinds, resources
from svc.admin.changes import Options, applied, preview, require_unlocked
from svc.admin.installation_resource import rules, workloads
from svc.admin.installation_resource.status import Findings, status_of
from svc.admin.installation_resource.wanted import CONFIG_KEY, CONFIG_MAP, NAMESPACE, Wanted, listing, subnet_errors, subnets_of
from svc.admin.installation_resource.wanted import wanted as wanted_state
from svc.admin.installation_resource.workloads import Patch
from svc.admin.operator_resource import PoolPlan, apply_pools, is_waiting, plan_pools, pool_label
from svc.admin.resources import CLUSTER, CREATED, POOL, UNCHANGED, UPDATED
from svc.datastore.api import Backend, StoreError
from svc.model import installation as shape
from svc.model.errors import CallerError, Code, SvcError
from svc.model.field_errors import FieldErrors
from svc.names import Names
from svc.retry import attempts
from svc.values import dataclass

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]
Guard = Callable[[], AbstractContextManager[object]]
"""Encloses each write of the Kubernetes API. It raises if the process must not write."""

KUBEADM: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps/kubeadm-config"
MISSING: Final = "does not exist: apply the manifests of svc"
_CONFLICT, _MISSING = 409, 404


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, and the datastore of its pools with the `settings` of its session. `namespace` has the workloads of svc."""

    client: "Client"
    store: Backend
    settings: dict[str, str]
    names: Names
    guard: Guard = nullcontext
    namespace: str = NAMESPACE

    @property
    def config_maps(self) -> str:
        """The path of the ConfigMaps beside the workloads of svc."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for an object. `changes` are its fields with their values before and after."""

    kind: str
    name: str
    outcome: str
    changes: tuple[tuple[str, Any, Any], ...] = ()

    @property
    def is_change(self) -> bool:
        return self.outcome != UNCHANGED


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a cluster. `config_map` is the present ConfigMap, None without one; `live` are present workloads."""

    wanted: Wanted
    pools: PoolPlan
    config_map: Json | None
    patches: tuple[Patch, ...]
    live: tuple[Json, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What `carry_out` has done, and what it leaves."""

    outcomes: tuple[Outcome, ...]
    findings: Findings
    waiting: tuple[str, ...] = ()  # pools


def path_of(names: Names, part: str = "") -> str:
    """Return the path of the Installation in the Kubernetes API, or of a part of it."""
    return f"/apis/{names.operator_api_version}/{shape.PLURAL}/{shape.NAME}{part and '/'}{part}"


def plan(cluster: Cluster, spec: Json) -> Plan:
    """Return what becomes of the cluster with this spec. Raise CallerError with every error; StoreError."""
    names = cluster.names
    _raise(rules.check(spec, names))
    subnets = subnets_of(cluster.client.get_if_served(KUBEADM))
    _raise(subnet_errors(spec, subnets, names))
    listed = listing(spec, subnets, names)
    pools = plan_pools(cluster.store, listed, names)
    present = resources.get(cluster.store, POOL)
    wanted = wanted_state(spec, listed, pools.wanted, present, cluster.settings, names, cluster.namespace)
    config_map = cluster.client.get_if_served(f"{cluster.config_maps}/{CONFIG_MAP}")
    _require_own(config_map, wanted, cluster)
    patches, live, missing = [], [], []
    for each in wanted.workloads:
        found = cluster.client.get_if_served(workloads.path_of(each.kind, each.name, each.namespace))
        if found is None:
            missing += [f"{each.kind} {each.namespace}/{each.name} {MISSING}"] if each.name == names.daemon_set else []
            continue
        found |= {"kind": each.kind}
        live += [found] if each.is_own else []
        if patch := workloads.patch_of(found, each, names):
            patches.append(patch)
    return Plan(wanted, pools, config_map, tuple(patches), tuple(live), tuple(missing))


def show(cluster: Cluster, made: Plan) -> list[Outcome]:
    """Return what `carry_out` would do."""
    found = [Outcome(POOL, pool.name, "would be disabled, then deleted") for pool in made.pools.stale]
    replaced = {pool.name for pool in made.pools.stale}
    new = [applied(kinds.POOLS, pool) for pool in made.pools.wanted if pool.name not in replaced]
    for each in preview(cluster.store, new, Options(datetime.now(timezone.utc))) if new else ():
        done = each.outcome if each.write is None else f"would be {each.outcome}"
        found.append(Outcome(POOL, each.after.name, done, tuple(each.fields())))
    found += [Outcome(POOL, pool.name, "would be created") for pool in made.pools.wanted if pool.name in replaced]
    found.append(_config_outcome(cluster, made))
    return found + [_patch_outcome(patch, planned=True) for patch in made.patches]


def require_writable(cluster: Cluster, made: Plan, *, while_locked: bool = False) -> None:
    """Raise CallerError for what would stop `carry_out` at its first writes. Write nothing."""
    if not while_locked:
        require_unlocked(cluster.store.find(CLUSTER))
    if made.config_map is not None:
        return
    try:
        cluster.client.create(
            cluster.config_maps, config_map_of(made.wanted, cluster.names, None, cluster.namespace), dryRun="All"
        )
    except StoreError as error:
        if getattr(error, "status", 0) == _MISSING:
            raise _namespace_missing(cluster) from None
        if getattr(error, "status", 0) != _CONFLICT:
            raise


def carry_out(cluster: Cluster, made: Plan, *, while_locked: bool = False) -> Result:
    """Bring the plan about; return what was done, and what is left. Raise CallerError before any write; StoreError."""
    require_writable(cluster, made, while_locked=while_locked)
    now = datetime.now(timezone.utc)
    pools = apply_pools(cluster.store, made.wanted.listing, cluster.names, now, while_locked=while_locked)
    outcomes = [Outcome(POOL, name, outcome) for name, outcome in pools]
    waiting = [(name, outcome) for name, outcome in pools if is_waiting(outcome)]
    outcomes.append(_write_config_map(cluster, made))
    live, problems = {(each["kind"], each["metadata"]["name"]): each for each in made.live}, []
    for patch in made.patches:
        try:
            written = _apply(cluster, patch) | {"kind": patch.workload.kind}
        except SvcError as error:
            if getattr(error, "status", 0) not in (_CONFLICT, 422):
                raise
            problems.append(f"{patch.workload.kind} {patch.workload.namespace}/{patch.workload.name}: {error}")
            continue
        outcomes.append(_patch_outcome(patch))
        if patch.workload.is_own:
            live[patch.workload.kind, patch.workload.name] = written
    rollouts = [(each, workloads.progress_of(each)) for each in live.values()]
    pending = [f"{POOL} {name} is {outcome}" for name, outcome in waiting] + [*made.missing]
    pending += [f"{each['kind']} {cluster.namespace}/{each['metadata']['name']}: {text}" for each, text in rollouts if text]
    findings = Findings(problems, "WorkloadConflict" if problems else "", pending)
    return Result(tuple(outcomes), findings, tuple(name for name, _ in waiting))


def write_status(cluster: Cluster, findings: Findings, computed: Json | None) -> bool:
    """Write the status of the Installation if it differs; return whether it was written. Raise StoreError."""
    path = path_of(cluster.names)
    for _ in attempts():
        present = cluster.client.get_if_served(path)
        if present is None:
            return False
        status = status_of(present, findings, computed)
        if status == present.get("status"):
            return False
        try:
            with cluster.guard():
                cluster.client.replace(path_of(cluster.names, "status"), present | {"status": status})
        except StoreError as error:
            if getattr(error, "status", 0) != _CONFLICT:
                raise
        else:
            return True
    raise StoreError("the status of the Installation keeps changing", details="stop what else writes it, or try again")


def config_map_of(made: Wanted, names: Names, present: Json | None = None, namespace: str = NAMESPACE) -> Json:
    """Return the ConfigMap with the network list. What else is in the present one stays."""
    before = present or {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": namespace}}
    key, value = pool_label(names)
    labels = (before["metadata"].get("labels") or {}) | {key: value}
    data = (before.get("data") or {}) | {CONFIG_KEY: made.network}
    return before | {"metadata": before["metadata"] | {"labels": labels}, "data": data}


def _require_own(present: Json | None, made: Wanted, cluster: Cluster) -> None:
    """Raise CallerError for a ConfigMap of the user with another content."""
    if present is None:
        return
    key, value = pool_label(cluster.names)
    is_own = (present["metadata"].get("labels") or {}).get(key) == value
    if not is_own and (present.get("data") or {}).get(CONFIG_KEY) not in (None, made.network):
        details = f"delete it, or give it the label {key}={value} so that svc may change it"
        raise CallerError(f"ConfigMap {cluster.namespace}/{CONFIG_MAP} exists, and is another's", details=details)


def _write_config_map(cluster: Cluster, made: Plan) -> Outcome:
    """Create or change the ConfigMap. If another program changes it first, read it again."""
    present, path = made.config_map, f"{cluster.config_maps}/{CONFIG_MAP}"
    for _ in attempts():
        _require_own(present, made.wanted, cluster)
        document = config_map_of(made.wanted, cluster.names, present, cluster.namespace)
        if document == present:
            return Outcome("ConfigMap", CONFIG_MAP, UNCHANGED)
        try:
            with cluster.guard():
                if present is None:
                    cluster.client.create(cluster.config_maps, document)
                else:
                    cluster.client.replace(path, document)
        except StoreError as error:
            if getattr(error, "status", 0) not in (_CONFLICT, _MISSING):
                raise
            present = cluster.client.get_if_served(path)
            continue
        return Outcome("ConfigMap", CONFIG_MAP, CREATED if present is None else UPDATED)
    raise StoreError(f"ConfigMap {CONFIG_MAP} keeps changing", details="stop what else writes it, or try again")


def _namespace_missing(cluster: Cluster) -> CallerError:
    msg = f"nothing was changed: the namespace {cluster.namespace!r} does not exist"
    return CallerError(
        msg, details="name the one that has the workloads of svc, or apply its manifests first", code=Code.NOT_AVAILABLE
    )


def _config_outcome(cluster: Cluster, made: Plan) -> Outcome:
    """Return what would be done to the ConfigMap."""
    if made.config_map == config_map_of(made.wanted, cluster.names, made.config_map, cluster.namespace):
        return Outcome("ConfigMap", CONFIG_MAP, UNCHANGED)
    before, after = ((made.config_map or {}).get("data") or {}).get(CONFIG_KEY), made.wanted.network
    done = CREATED if made.config_map is None else UPDATED
    changes = ((f"data.{CONFIG_KEY}", before, after),) if before != after else ()
    return Outcome("ConfigMap", CONFIG_MAP, f"would be {done}", changes)


def _apply(cluster: Cluster, patch: Patch) -> Json:
    """Write the variables. Those of svc are forced; a program of others keeps what it sets itself."""
    workload, manager = patch.workload, workloads.manager_of(cluster.names)
    path, force = workloads.path_of(workload.kind, workload.name, workload.namespace), str(workload.is_own).lower()
    with cluster.guard():
        return cluster.client.patch(path, patch.body, workloads.APPLY_PATCH, fieldManager=manager, force=force)


def _patch_outcome(patch: Patch, *, planned: bool = False) -> Outcome:
    done = f"would be {UPDATED}" if planned else UPDATED
    return Outcome(patch.workload.kind, patch.workload.name, done, patch.changes)


def _raise(found: Iterator[Any] | Sequence[Any]) -> None:
    errors = FieldErrors("nothing was changed", Code.INVALID_NETCONF, [*found])
    errors.raise_if_any()
