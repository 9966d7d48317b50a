"""Steps of moves between deployments: what they save, and what their undoing brings back."""

from collections.abc import Sequence
from typing import Any

import pytest

from harness.memory_writer import MemoryWriter
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile
from svc.upgrade.backup import Backup, Entry
from svc.upgrade.bundle import Bundle
from svc.upgrade.former_steps import HoldFormer, PauseControllers, RemoveWorkloads
from svc.upgrade.former_subjects import FormerSubjects
from svc.upgrade.node_turns import MARK, Turn
from svc.upgrade.object_states import digest, essence, last_applied
from svc.upgrade.object_step import ObjectStep
from svc.upgrade.outcomes import Blocked
from svc.upgrade.places import Place
from svc.upgrade.pool_labels import PoolLabels
from svc.upgrade.run_record import Run as RecordedRun
from svc.upgrade.saved_steps import saved_steps
from svc.upgrade.step import Step
from svc.upgrade.takeover_steps import CONTROLLERS as CONTROLLERS_STEP
from svc.upgrade.takeover_steps import POLICY_AGENT as POLICY_AGENT_STEP
from svc.upgrade.takeover_steps import RESTORER, RESTORER_END, PolicyAgent, turn_of

Json = dict[str, Any]

KEY = "svc.internal/moving"
AGENT = Place("apps/v1", "DaemonSet", "svc-system", "svc-node")
FORMER = Place("apps/v1", "DaemonSet", "kube-system", "svc-node")
CONTROLLERS = Place("apps/v1", "Deployment", "kube-system", "svc-controllers")
BINDING = Place("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", "svc")
TURN = Turn(KEY, "waiting", AGENT, FORMER)
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
CALICO = load_profile("calico")
POLICY_AGENT = Place("apps/v1", "DaemonSet", "kube-system", "calico-node")


def made(place: Place, **content: Any) -> Json:
    metadata = {"name": place.name} | ({"namespace": place.namespace} if place.namespace else {})
    return {"apiVersion": place.api_version, "kind": place.kind, "metadata": metadata, **content}


def daemon_set() -> Json:
    return made(FORMER, spec={"updateStrategy": ROLLING, "template": {"spec": {"containers": []}}})


def subject(namespace: str, name: str = "svc-node") -> Json:
    return {"kind": "ServiceAccount", "namespace": namespace, "name": name}


class Run:
    """A step as runs carry it out, and what they have saved."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.saved: list[Json] = []

    def carry_out(self) -> None:
        look = self.step.look(self.saved)
        if entry := self.step.unsaved(look, self.saved):
            self.saved.append(entry)
        self.step.act(look)
        assert self.step.look(self.saved).is_done

    def undo(self) -> None:
        look = self.step.look_back(self.saved)
        if look.blockers:
            raise Blocked(look.blockers)
        self.step.undo(look)
        assert self.step.look_back(self.saved).is_done


def find(writer: MemoryWriter, place: Place) -> Json:
    found = writer.find(place)
    assert found is not None
    return found


def test_a_second_run_is_undone_to_what_was_before_it() -> None:
    """A user has changed the DaemonSet and the number of controllers in between."""
    writer = MemoryWriter(daemon_set(), made(CONTROLLERS, spec={"replicas": 2}))
    hold, pause = Run(HoldFormer(writer, TURN)), Run(PauseControllers(writer, CONTROLLERS))
    for number in (2, 3):
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": number}}
        writer.edit(FORMER, updateStrategy=strategy)
        writer.edit(CONTROLLERS, replicas=number)
        for each in (hold, pause):
            each.carry_out()
            each.undo()
        spec = find(writer, FORMER)["spec"]
        assert (spec["updateStrategy"], "affinity" in spec["template"]["spec"]) == (strategy, False)
        assert find(writer, CONTROLLERS)["spec"]["replicas"] == number


def test_affinity_of_the_move_is_never_saved_as_that_of_before() -> None:
    """Another program has set the update strategy during the run, and the next run goes on."""
    writer = MemoryWriter(daemon_set())
    run = Run(HoldFormer(writer, TURN))
    run.carry_out()
    writer.edit(FORMER, updateStrategy=ROLLING)
    run.carry_out()
    run.undo()
    assert "affinity" not in find(writer, FORMER)["spec"]["template"]["spec"]


def test_undoing_stops_at_what_was_changed_since() -> None:
    binding = made(BINDING, subjects=[subject("kube-system"), subject("svc-system")])
    writer = MemoryWriter(daemon_set(), made(CONTROLLERS, spec={"replicas": 2}), binding)
    hold, pause = Run(HoldFormer(writer, TURN)), Run(PauseControllers(writer, CONTROLLERS))
    subjects = Run(FormerSubjects(writer, [BINDING], "kube-system"))
    for each in (hold, pause, subjects):
        each.carry_out()
    writer.edit(FORMER, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 7}})
    writer.edit(CONTROLLERS, replicas=7)
    live = find(writer, BINDING)
    writer.replace(live | {"subjects": [*live["subjects"], subject("mine")]}, live)
    number = len(writer.writes)
    for each in (hold, pause, subjects):
        with pytest.raises(Blocked, match="was changed since"):
            each.undo()
    assert len(writer.writes) == number
    assert [change for each in (hold, pause, subjects) for change in each.step.look_back(each.saved).changes] == [
        (f"{FORMER}: spec.updateStrategy", {"type": "OnDelete"}, find(writer, FORMER)["spec"]["updateStrategy"]),
        (f"{CONTROLLERS}: spec.replicas", 0, 7),
        (f"{BINDING}: subjects[+]", None, subject("mine")),
    ], "what was made -> what is there"


def test_subjects_of_a_second_run() -> None:
    """A user has bound another account in between."""
    writer = MemoryWriter(made(BINDING, subjects=[subject("kube-system"), subject("svc-system")]))
    run = Run(FormerSubjects(writer, [BINDING], "kube-system"))
    run.carry_out()
    run.undo()
    live = find(writer, BINDING)
    more = [*live["subjects"], subject("mine")]
    writer.replace(live | {"subjects": more}, live)
    run.carry_out()
    assert find(writer, BINDING)["subjects"] == [subject("svc-system"), subject("mine")]
    run.undo()
    assert find(writer, BINDING)["subjects"] == more


def test_subjects_are_restored_once() -> None:
    """An interrupted undoing has restored the binding of before, without the accounts of the new namespace, and goes on."""
    writer = MemoryWriter(made(BINDING, subjects=[subject("kube-system"), subject("svc-system")]))
    run = Run(FormerSubjects(writer, [BINDING], "kube-system"))
    run.carry_out()
    run.undo()
    live = find(writer, BINDING)
    writer.replace(live | {"subjects": [subject("kube-system")]}, live)
    number = len(writer.writes)
    run.undo()
    assert find(writer, BINDING)["subjects"] == [subject("kube-system")]
    assert len(writer.writes) == number


def test_former_workloads_stay_while_a_node_waits() -> None:
    """It joined after the turns were planned, and before the nodes were marked."""
    node = made(Place("v1", "Node", "", "late"))
    node["metadata"]["labels"] = {KEY: "waiting"}
    writer = MemoryWriter(daemon_set(), node)
    step = RemoveWorkloads(writer, [FORMER], TURN)
    with pytest.raises(Blocked, match="node late has joined during the move"):
        step.act(step.look([]))
    assert writer.writes == []
    live = find(writer, Place("v1", "Node", "", "late"))
    writer.replace(live | {"metadata": live["metadata"] | {"labels": {KEY: "migrated"}}}, live)
    step.act(step.look([]))
    assert writer.find(FORMER) is None


def test_former_daemon_set_comes_back_last() -> None:
    """An undoing that is interrupted leaves no DaemonSet without its ConfigMap, from which the next move would be planned."""
    settings = Place("v1", "ConfigMap", "kube-system", "cni-config")
    writer = MemoryWriter(daemon_set(), made(CONTROLLERS, spec={"replicas": 0}), made(settings, data={"config": "{}"}))
    run = Run(RemoveWorkloads(writer, [FORMER, CONTROLLERS, settings], TURN))
    run.carry_out()
    number = len(writer.writes)
    run.undo()
    assert writer.writes[number:] == [f"create {place}" for place in (settings, CONTROLLERS, FORMER)]


def policy_agent(image: str) -> Json:
    containers = [{"name": "calico-node", "image": image, "env": [{"name": "IP", "value": "autodetect"}]}]
    installers = [{"name": "install-cni", "image": image}]
    return made(POLICY_AGENT, spec={"template": {"spec": {"containers": containers, "initContainers": installers}}})


def test_second_takeover_is_undone_to_the_policy_agent_before_it() -> None:
    """The other product was upgraded in between."""
    writer = MemoryWriter(policy_agent("calico/node:v3.28.0"), names=CALICO)
    run = Run(PolicyAgent(writer, POLICY_AGENT))
    run.carry_out()
    run.undo()
    wanted = policy_agent("calico/node:v3.29.0")["spec"]
    writer.edit(POLICY_AGENT, **wanted)
    run.carry_out()
    run.undo()
    assert find(writer, POLICY_AGENT)["spec"] == wanted


def test_policy_agent_without_its_installer_is_never_saved() -> None:
    """Another program has removed the variable during the run, and the next run goes on."""
    writer = MemoryWriter(policy_agent("calico/node:v3.28.0"), names=CALICO)
    run = Run(PolicyAgent(writer, POLICY_AGENT))
    run.carry_out()
    spec = find(writer, POLICY_AGENT)["spec"]["template"]["spec"]
    spec["containers"][0]["env"] = [{"name": "IP", "value": "autodetect"}]
    writer.edit(POLICY_AGENT, template={"spec": spec})
    run.carry_out()
    run.undo()
    assert find(writer, POLICY_AGENT)["spec"] == policy_agent("calico/node:v3.28.0")["spec"]


def test_difference_of_a_policy_agent_that_was_changed_is_shown() -> None:
    writer = MemoryWriter(policy_agent("calico/node:v3.28.0"), names=CALICO)
    run = Run(PolicyAgent(writer, POLICY_AGENT))
    run.carry_out()
    spec = find(writer, POLICY_AGENT)["spec"]["template"]["spec"]
    spec["containers"][0]["image"] = "other"
    writer.edit(POLICY_AGENT, template={"spec": spec})
    look = run.step.look_back(run.saved)
    assert look.blockers == ("DaemonSet/kube-system/calico-node was changed since",)
    assert look.changes == (("containers[calico-node].image", "calico/node:v3.28.0", "other"),)


def test_pools_of_a_second_run() -> None:
    """A user has changed a pool in between."""
    place = Place(DEFAULT.crd_api_version, "IPPool", "", "pool")
    writer = MemoryWriter(made(place, spec={"cidr": "10.0.0.0/16", "natOutgoing": True}))
    run = Run(PoolLabels(writer, ["pool"]))
    for nat in (True, False):
        writer.edit(place, natOutgoing=nat)
        run.carry_out()
        run.undo()
        assert find(writer, place)["spec"] == {"cidr": "10.0.0.0/16", "natOutgoing": nat}


def test_undoing_between_the_two_writes_of_a_step() -> None:
    """The run has moved the fields of the client, and was killed before it applied the manifest."""
    place, note = Place("v1", "ConfigMap", "kube-system", "settings"), last_applied(DEFAULT)
    fields = {"f:data": {"f:a": {}}, "f:metadata": {"f:annotations": {f"f:{note}": {}}}}
    client, own = ({"manager": name, "operation": "Update", "fieldsV1": fields} for name in ("kubectl", "svcctl"))
    before, live = made(place, data={"a": "1"}), made(place, data={"a": "1"})
    before["metadata"] |= {"annotations": {note: "{}"}, "managedFields": [client]}
    live["metadata"] |= {"managedFields": [own]}
    writer = MemoryWriter(live)
    step = ObjectStep(writer, before, Bundle([]), lambda _: None)
    at = digest(essence(before, DEFAULT))
    saved = [{"before": before, "after": made(place), "digest_before": at, "digest_after": digest(made(place))}]
    assert step._base(live, [saved[0] | {"base": {}}]) == (None, True)
    killed = ObjectStep(writer, before, Bundle([]), lambda _: {})
    assert killed._base(live, [saved[0] | {"base": {}}]) == ({}, False), "as before the kill"
    step.undo(step.look_back(saved))
    assert step.look_back(saved).is_done
    metadata = find(writer, place)["metadata"]
    assert (metadata["annotations"], metadata["managedFields"]) == ({note: "{}"}, [client])


@pytest.mark.parametrize(("block", "stays"), [("10.244.3.0/26", True), ("10.1.0.0/26", False)])
def test_pool_that_is_in_use_stays(block: str, stays: bool) -> None:
    """Its addresses would be those of no pool."""
    version = DEFAULT.crd_api_version
    place = Place(version, "IPPool", "", "pool")
    pool = made(place, spec={"cidr": "10.244.0.0/16"})
    writer = MemoryWriter(pool, made(Place(version, "IPAMBlock", "", "b"), spec={"cidr": block}))
    step = ObjectStep(writer, pool, Bundle([]), lambda _: None)
    state = essence(pool, DEFAULT)
    saved = [{"before": None, "after": state, "digest_before": digest(None), "digest_after": digest(state)}]
    look = step.look_back(saved)
    assert (look.is_done, look.notes) == (stays, ("IPPool/pool stays: nodes have blocks of it",) if stays else ())
    writer.edit(place, natOutgoing=True)
    assert step.look_back(saved).blockers == (() if stays else ("IPPool/pool was changed since",)), "what stays may differ"


class MemoryBackup(Backup):
    """A backup that is kept in memory."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = list(entries)


@pytest.mark.parametrize("known", [(), (RESTORER,)])
def test_takeover_without_its_record_restores_the_files_as_well(known: Sequence[str]) -> None:
    """The steps that do so save nothing, so that a backup alone does not have them."""
    agent = Place("apps/v1", "DaemonSet", "kube-system", "svc-node")
    saved = {"turn": turn_of(CALICO, agent).to_json()}
    names = [POLICY_AGENT_STEP, MARK, "node/one", "node/two", CONTROLLERS_STEP]
    entries = [Entry(name, saved) for name in names]
    run = RecordedRun("r", "", "", "", {}, "running", dict.fromkeys([*names, *known], "pending"))
    found = [step.name for step in saved_steps(MemoryWriter(names=CALICO), run, MemoryBackup(entries))]
    if known:
        names = [*names, RESTORER]
    else:
        names.insert(4, RESTORER)
    names.insert(1, RESTORER_END)
    assert found == names
