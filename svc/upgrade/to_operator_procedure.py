"""Procedure `to-operator`: a deployment by manifests becomes one that an Installation describes, one node after the other."""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from svc.admin.installation_resource import workloads
from svc.admin.installation_resource.wanted import CONFIG_MAP, Wanted, Workload
from svc.deploy import rbac
from svc.deploy.installation_crd import definition
from svc.model.errors import CallerError
from svc.model.installation import KIND
from svc.upgrade.bundle import Bundle
from svc.upgrade.canary import try_pod
from svc.upgrade.client_versions import listed
from svc.upgrade.cluster_state import read_state
from svc.upgrade.former_steps import (
    ACCOUNTS,
    HoldFormer,
    PauseControllers,
    RemoveFormer,
    RemoveWorkloads,
)
from svc.upgrade.former_subjects import FormerSubjects, subjects_of
from svc.upgrade.node_turns import MarkNodes, UnmarkNodes, affinity, turns
from svc.upgrade.object_step import Former, ObjectStep
from svc.upgrade.operator_view import APPS, BUDGET, DAEMON_SET, DEPLOYMENT, OperatorView, version_in
from svc.upgrade.places import Place, place_of
from svc.upgrade.pool_labels import PoolLabels
from svc.upgrade.procedure import Findings
from svc.upgrade.step import Progress, Step
from svc.upgrade.writer import Writer

Json = dict[str, Any]

NAME: Final = "to-operator"
_BINDINGS: Final = ("ClusterRoleBinding", "RoleBinding")
_LATER: Final = (KIND, DEPLOYMENT, BUDGET)  # with the Installation, the operator begins to change pools


class OperatorAgent(ObjectStep):
    """The operator's DaemonSet. The operator has to take it as its own before a node has its pod."""

    def __init__(self, writer: Writer, document: Json, bundle: Bundle, former: Former, wanted: Workload) -> None:
        super().__init__(writer, document, bundle, former)
        self._wanted = wanted

    def progress(self, *, detailed: bool = False) -> Progress:
        """Return whether the operator has its variables, and the pods that are wanted are ready."""
        live = self._writer.find(self.place)
        if live is not None and workloads.patch_of(live, self._wanted, self._writer.names) is not None:
            return Progress(
                False, (f"{self.place}: the controller operator has not taken it over: see the log of svc-controllers",)
            )
        return super().progress(detailed=detailed)


class ToOperatorProcedure:
    """The procedure. It has no input: everything follows from the cluster."""

    name = NAME

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.inputs = {"procedure": NAME}

    def steps(self, former: Former) -> list[Step]:
        """Return the steps: the Installation and the operator's objects, the nodes, and then what was there before."""
        view = OperatorView(self._writer)
        if self._problems(view):
            return []
        installation = view.document()
        wanted = view.rendered(installation["spec"])
        bundle = Bundle([definition(self._writer.names), installation, *view.documents(), *view.copied()])
        turn = view.turn
        return [
            *self._objects(bundle, former, workload=False),
            MarkNodes(self._writer, turn),
            HoldFormer(self._writer, turn),
            PauseControllers(self._writer, self._former_place(view, DEPLOYMENT, self._writer.names.controllers)),
            PoolLabels(self._writer, [pool.name for pool in wanted.listing.pools] if wanted.listing.is_given else []),
            *self._objects(bundle, former, workload=True),
            self._agent(bundle, former, view, wanted),
            *turns(self._writer, turn),
            *self._former(view, bundle),
            UnmarkNodes(self._writer, turn),
        ]

    def findings(self) -> Findings:
        """Return what is found, and what forbids the move. Raise StoreError."""
        view, state = OperatorView(self._writer), read_state(self._writer)
        live = view.deployed.former or view.deployed.new
        problems = list(self._problems(view))
        if live is None:
            return Findings(self.name, {}, tuple(problems))
        added, changed = view.differences() if not problems else ([], [])
        if state.is_locked:
            problems.append("the datastore is locked: `svcctl clusterinfo unlock`, if no migration is at work")
        version = state.version or version_in(live)
        facts: Json = {
            "datastore": "Kubernetes API",
            "method": self.name,
            "version": version,
            "namespace of before": view.former_namespace or "none",
            "namespace of the operator": view.namespace,
            "programs on PATH": listed(os.environ.get("PATH", "")),
        }
        facts |= {"differences": added} if added else {}
        return Findings(self.name, facts, (*problems, *changed), version, version)

    def unverified(self) -> list[str]:
        """Return nothing: each step has waited for its result."""
        return []

    def prove(self, pause: Callable[[float], None]) -> list[str]:
        """Start a pod on a node of the agent, and delete it."""
        live = OperatorView(self._writer).deployed.new
        return [] if live is None else try_pod(self._writer, live, pause)

    def _problems(self, view: OperatorView) -> Sequence[str]:
        if view.deployed.problems:
            return view.deployed.problems
        if view.deployed.former is None:
            missing = f"{view.installation_place} does not exist, and no deployment by manifests from which it could be derived"
            return () if view.installation() is not None else (missing,)
        try:
            view.rendered(view.document()["spec"])
        except CallerError as error:
            return (error.as_text(),)
        except ValueError as error:
            return (str(error),)
        return ()

    def _objects(self, bundle: Bundle, former: Former, *, workload: bool) -> Iterator[Step]:
        """Yield the steps of the objects but the DaemonSet: those that only prepare, or those that run."""
        for document in bundle.documents:
            if document["kind"] != DAEMON_SET and (document["kind"] in _LATER) == workload:
                yield ObjectStep(self._writer, self._bound(document), bundle, former)

    def _bound(self, document: Json) -> Json:
        """Return a binding with the subjects of the former deployment, which stay bound during the move."""
        if document["kind"] not in _BINDINGS:
            return document
        live = self._writer.find(place_of(document)) or {}
        kept = [each for each in subjects_of(live) if each not in document["subjects"]]
        return document | {"subjects": [*document["subjects"], *kept]}

    def _agent(self, bundle: Bundle, former: Former, view: OperatorView, wanted: Wanted) -> Step:
        """Return the step of the DaemonSet, with what the operator sets, and bound to the nodes that do not wait."""
        (document,) = bundle.of_kind(DAEMON_SET)
        own = wanted.workloads[0]
        return OperatorAgent(self._writer, completed(document, own, affinity(view.turn, is_former=False)), bundle, former, own)

    def _former(self, view: OperatorView, bundle: Bundle) -> list[Step]:
        """Return the steps that remove the former deployment, whose namespace stays."""
        bindings = [place_of(each) for each in bundle.documents if each["kind"] in _BINDINGS]
        names = self._writer.names
        found = [
            (DAEMON_SET, names.daemon_set, APPS),
            (DEPLOYMENT, names.controllers, APPS),
            (BUDGET, names.controllers, view.settings().policy_api),
            ("ConfigMap", CONFIG_MAP, "v1"),
        ]
        accounts = [
            *(("ServiceAccount", name, "v1") for name in self._accounts()),
            *((kind, rbac.installer_name(names), bindings[0].api_version) for kind in ("RoleBinding", "Role")),
        ]
        namespace = self._left_namespace(view, bindings)
        return [
            RemoveWorkloads(
                self._writer, [Place(api, kind, namespace, name) for kind, name, api in found if namespace], view.turn
            ),
            RemoveFormer(
                self._writer, ACCOUNTS, [Place(api, kind, namespace, name) for kind, name, api in accounts if namespace]
            ),
            FormerSubjects(self._writer, bindings, namespace),
        ]

    def _left_namespace(self, view: OperatorView, bindings: Sequence[Place]) -> str:
        """Return the namespace of the former deployment. If its DaemonSet is gone, bindings still tell it: they go last."""
        if view.former_namespace:
            return view.former_namespace
        accounts = self._accounts()
        found = [each for place in bindings for each in subjects_of(self._writer.find(place) or {}) if each["name"] in accounts]
        others = [str(each.get("namespace") or "") for each in found]
        return next((each for each in others if each not in ("", view.namespace)), "")

    def _accounts(self) -> tuple[str, ...]:
        names = self._writer.names
        return rbac.plugin_account(names), names.daemon_set, names.controllers

    def _former_place(self, view: OperatorView, kind: str, name: str) -> Place | None:
        return Place(APPS, kind, view.former_namespace, name) if view.former_namespace else None


def completed(document: Json, workload: Workload, pods: Json) -> Json:
    """Return a workload with what the operator sets, and with an affinity of its pods."""
    found = copy.deepcopy(document)
    template = found["spec"]["template"]
    template["metadata"]["annotations"] = dict(workload.annotations)
    template["spec"]["affinity"] = pods
    for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
        kept = [each for each in container.get("env") or () if each["name"] not in workload.variables]
        container["env"] = [*kept, *({"name": name, **entry} for name, entry in workload.variables.items())]
    return found
