"""Whose the objects are that a deployment would change.

The apply forces every field. Without this check it would take roles and workloads from another product with the same names,
the network list from an Installation, the rights of svc from its pods in another namespace, and the nodes from svc with other
names.

An object belongs to svc in each of these cases:
1. svcctl has applied it, as the managed fields of the object say.
2. It is a workload, or its budget, with the selector of svc. svc with other names has the same selector on nodes: then the
   objects that both would have are refused.
3. It is equal, so that nothing would change.
4. It is a role or a binding, and the Deployment of svc is there: another program has applied the same deployment. The
   DaemonSet does not tell, because it has the same name with each names profile.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from svc.admin.operator_resource import pool_label
from svc.datastore.api import StoreError
from svc.deploy.discovery import Discovery
from svc.deploy.manifests.controllers import deployment
from svc.deploy.manifests.objects import objects
from svc.deploy.manifests.settings import CONFIG_KEY, NONE, OPERATOR, Settings
from svc.deploy.server_apply import MANAGER, describe, identity_of, is_refusal, named
from svc.netconf.names_profiles import DEFAULT_NAME, load_profile
from svc.values import dataclass, replace

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]

_WORKLOADS: Final = ("DaemonSet", "Deployment", "PodDisruptionBudget")
_ROLES: Final = ("ClusterRole", "Role")
_BINDINGS: Final = ("ClusterRoleBinding", "RoleBinding")
_CONFIG_MAP: Final = "ConfigMap"
_CHECKED: Final = (*_WORKLOADS, *_ROLES, *_BINDINGS, _CONFIG_MAP)
_REMEDY: Final = "update it with the program that made it, delete it if nothing needs it, or give other --names"


@dataclass(frozen=True, slots=True)
class _Pair:
    """An object as it is `wanted`, and as the server has it."""

    wanted: Json
    present: Json

    @property
    def kind(self) -> str:
        return str(self.wanted["kind"])

    def is_equal(self, *fields: str) -> bool:
        return all(self.wanted.get(field) == self.present.get(field) for field in fields)


class Owners:
    """The owners of present objects with the names of a deployment."""

    def __init__(self, client: "Client", settings: Settings) -> None:
        self._client = client
        self._discovery = Discovery(client)
        self._settings = settings
        self.unreadable: list[StoreError] = []

    def refusals(self, documents: Sequence[Json]) -> Iterator[str]:
        """Yield a line for each object that is not svc's, with its name and the next step. Raise StoreError.

        Objects of the data-path proxy are left out: the user has given them. `unreadable` then has the requests that the server
        has denied."""
        given = set(map(identity_of, self._settings.proxy))
        found = [(each, self._readable(each)) for each in documents if identity_of(each) not in given]
        pairs = [_Pair(each, present) for each, present in found if present is not None]
        is_there = any(each.kind == "Deployment" and _has_selector(each) for each in pairs)
        profile = _profile_of(pairs)
        is_renamed = profile not in (None, self._settings.profile)
        shared = set(map(identity_of, self._objects_of(profile or ""))) if is_renamed else ()
        for pair in pairs:
            if identity_of(pair.wanted) in shared:
                yield f"{describe(pair.wanted)} is of svc with other names: {_renaming(profile or DEFAULT_NAME)}"
            elif reason := self._refusal(pair, is_there=is_there):
                yield f"{describe(pair.wanted)} {reason}"

    def _objects_of(self, profile: str) -> list[Json]:
        """Return the same deployment with another names profile."""
        return objects(replace(self._settings, names=load_profile(profile), profile=profile, crds=NONE, proxy=[]))

    def _readable(self, document: Json) -> Json | None:
        try:
            with named(document):
                return self._present(document)
        except StoreError as error:
            if not is_refusal(error):
                raise
            self.unreadable.append(error)
            return None

    def _present(self, document: Json) -> Json | None:
        if document["kind"] not in _CHECKED:
            return None
        served = self._discovery.find(document["apiVersion"], document["kind"])
        metadata = document["metadata"]
        path = served and served.path(document["apiVersion"], metadata["name"], metadata.get("namespace", ""))
        return self._client.get_if_served(path) if path else None

    def _refusal(self, pair: _Pair, *, is_there: bool) -> str:
        """Return why the object stays as it is, and the next step; empty if it may be changed."""
        if pair.kind == _CONFIG_MAP:
            return self._refusal_of_network(pair)
        if pair.kind in _WORKLOADS:
            return "" if _has_selector(pair) else f"exists, and selects other pods: {_REMEDY}"
        if namespace := self._former_namespace(pair):
            return f"is for svc in the namespace {namespace}: give --namespace {namespace}, or remove that deployment first"
        is_own = is_there or _is_applied(pair.present)
        is_equal = pair.is_equal("rules") if pair.kind in _ROLES else pair.is_equal("roleRef", "subjects")
        return "" if is_own or is_equal else f"exists, and svcctl has not applied it: {_REMEDY}"

    def _former_namespace(self, pair: _Pair) -> str:
        """Return the other namespace whose accounts have a binding of svc, else an empty text."""
        if pair.kind not in _BINDINGS or not pair.is_equal("roleRef"):
            return ""
        accounts = [each for each in pair.present.get("subjects") or () if each.get("kind") == "ServiceAccount"]
        others = {str(each.get("namespace")) for each in accounts} - {self._settings.namespace}
        return next((each for each in sorted(others) if _is_applied(pair.present) or self._is_installed_in(each)), "")

    def _is_installed_in(self, namespace: str) -> bool:
        """Return whether a namespace has the Deployment of svc."""
        wanted = deployment(replace(self._settings, namespace=namespace))
        present = self._present(wanted)
        return present is not None and _has_selector(_Pair(wanted, present))

    def _refusal_of_network(self, pair: _Pair) -> str:
        labels = pair.present["metadata"].get("labels") or {}
        key, value = pool_label(self._settings.names)
        if labels.get(key) == value:
            return f"belongs to the Installation: change that, and update svc with --flavour {OPERATOR}"
        is_own = pair.wanted["metadata"]["labels"].items() <= labels.items() or _is_applied(pair.present)
        is_equal = (pair.present.get("data") or {}).get(CONFIG_KEY) in (None, pair.wanted["data"][CONFIG_KEY])
        return "" if is_own or is_equal else "exists, and is another's: keep a copy of it, and delete it"


def _renaming(profile: str) -> str:
    return f"give --names {profile}, or remove that deployment first, because a node has one svc"


def _profile_of(pairs: Sequence[_Pair]) -> str | None:
    """Return the names profile of the DaemonSet of svc that is there; None without such a DaemonSet."""
    present = next((each.present for each in pairs if each.kind == "DaemonSet" and _has_selector(each)), None)
    if present is None:
        return None
    pod = present["spec"]["template"]["spec"]
    arguments = [str(each) for container in pod.get("initContainers") or () for each in container.get("args") or ()]
    return next((profile for option, profile in pairwise(arguments) if option == "--names"), "")


def _is_applied(present: Json) -> bool:
    entries = present["metadata"].get("managedFields") or ()
    return any(each.get("manager") == MANAGER and each.get("operation") == "Apply" for each in entries)


def _has_selector(pair: _Pair) -> bool:
    return bool(pair.wanted["spec"]["selector"] == (pair.present.get("spec") or {}).get("selector"))
