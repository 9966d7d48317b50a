"""The part of svc-controllers that keeps KubeControllersConfiguration, on real datastores, with a status subresource or not."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from contract.conftest import OpenStore
from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import set_ready
from harness.kube import ADMIN_TOKEN, Kube
from harness.orch import install
from harness.polling import eventually, wait_until
from harness.running_controller import Running, running
from svc.attach.datastore_ready import KEY as READY
from svc.controllers.conditions import FALSE, TRUE, Condition
from svc.controllers.configuration import Configuration
from svc.controllers.configuration_merge import configuration_of, running_config
from svc.controllers.configuration_resource import VALID, ConfigurationResource
from svc.controllers.settings import CONTROLLERS, Settings, read
from svc.datastore.api import Backend, Conflict, Create, Delete, NotFound, Update, Write
from svc.datastore.orch.client import Client
from svc.datastore.orch.store import OrchStore
from svc.deploy.crds import definitions
from svc.model import controllers_configuration as shape
from svc.model.controllers_configuration import KEY, KIND
from svc.model.resource import Resource
from svc.names import DEFAULT

Json = dict[str, Any]

NONE: Mapping[str, str] = {}
STORES = ("etcdv3", "orch", "orch, plain group")  # the plain group has the subresource
pytestmark = pytest.mark.only_over(*STORES)


@dataclass
class Processes:
    """Processes of the controllers on one datastore, and a session of an administrator with it."""

    store: Backend
    open_store: OpenStore
    client: Client
    stack: ExitStack

    @property
    def has_copies(self) -> bool:
        return self.store.atomic

    def start(self, variables: Mapping[str, str] = NONE, *, leads: bool = True) -> Running:
        """Start the part as a process with these variables does."""
        found = read({"KUBERNETES_SERVICE_HOST": "10.96.0.1", **variables}, DEFAULT, None)
        kind = "etcdv3" if self.has_copies else "orch"
        settings = Settings(found.controllers, {"kind": kind}, {}, found.configuration, found.overrides)
        make = lambda shared: ConfigurationResource(shared, settings)  # noqa: E731
        return self.stack.enter_context(
            running(self.client, self.open_store(), make, leads=leads, configuration=found.configuration)
        )

    def create(self, spec: Json, status: Json | None = None) -> None:
        self.store.write([Create(KEY, Resource(KIND, {"name": KEY.name}, spec, status))])

    def change(self, spec: Json) -> None:
        """Replace the spec, and leave the status."""
        entry = eventually(lambda: self.store.find(KEY), bool)
        while True:
            assert entry is not None
            entry.value.spec = spec
            try:
                self.store.write([Update(KEY, entry.value, entry.revision)])
                return
            except Conflict:  # the part has written the status
                entry = self.store.get(KEY)

    def delete(self) -> None:
        self.store.write([Delete(KEY)])

    def await_status(self, accept: Callable[[Json], object]) -> Json:
        """Wait until the status is accepted, and return it."""

        def status() -> Json:
            entry = self.store.find(KEY)
            return (entry.value.status if entry else None) or {}

        return eventually(status, accept)

    def await_condition(self, status: str, kind: str = VALID) -> Json:
        """Wait until a condition has this status, and return it."""
        return condition(self.await_status(lambda found: condition(found, kind).get("status") == status), kind)

    def in_force(self, **fields: Any) -> Configuration:
        """Return the defaults with other values."""
        return configuration_of(shape.merged(shape.defaults(), fields), has_copies=self.has_copies)


@pytest.fixture
def processes(open_store: OpenStore, client: Client) -> Iterator[Processes]:
    store = open_store()
    set_ready(store)
    with ExitStack() as stack:
        yield Processes(store, open_store, client, stack)
    with suppress(NotFound):
        store.write([Delete(KEY)])


def condition(status: Json, kind: str = VALID) -> Json:
    return next((each for each in status.get("conditions") or () if each["type"] == kind), {})


def node(**fields: Any) -> Json:
    return {"controllers": {"node": fields}}


# the life of the object


def test_object_is_created_from_all_defaults_and_again_after_deletion(processes: Processes) -> None:
    process = processes.start()
    status = processes.await_status(condition)
    entry = processes.store.get(KEY)
    assert entry.value.spec == shape.defaults()
    assert entry.value.metadata["uid"]
    assert status["runningConfig"] == running_config(shape.defaults(), CONTROLLERS, has_copies=processes.has_copies)
    assert status["environmentVars"] == {}
    assert condition(status) | {"lastTransitionTime": ""} == {
        "type": VALID, "status": TRUE, "reason": "Valid", "message": "Every value is valid.", "lastTransitionTime": "",
    }  # fmt: skip
    assert process.live.is_known
    processes.change({"logSeverityScreen": "Debug"})
    wait_until(lambda: process.live.now.log_level == "DEBUG")
    processes.delete()
    wait_until(lambda: process.live.now == processes.in_force())
    processes.await_status(lambda found: found.get("runningConfig", {}).get("logSeverityScreen") == "Info")
    assert processes.store.get(KEY).value.spec == shape.defaults()


@pytest.mark.parametrize("enabled", ["node,operator", "node"])
def test_new_datastore_is_initialised_for_the_operator_alone(processes: Processes, enabled: str) -> None:
    """The pods on nodes, which initialise it otherwise, wait for what the controller `operator` writes."""
    store = processes.store
    store.write([Delete(READY)])
    process = processes.start({"ENABLED_CONTROLLERS": enabled})
    if "operator" in enabled:
        wait_until(lambda: store.find(KEY) is not None)
        spec = store.get(READY).value.spec
        assert spec["datastoreReady"] is True
        assert re.fullmatch("[0-9a-f]{32}", spec["clusterGUID"])
        assert spec["clusterType"] == DEFAULT.orchestrator
        return
    wait_until(lambda: process.part.tally.failed > 0)
    assert store.find(READY) is None
    assert store.find(KEY) is None


def test_locked_datastore_stays_locked(processes: Processes) -> None:
    """The controller `operator` initialises only what has never been initialised."""
    set_ready(processes.store, ready=False)
    before = processes.store.get(READY)
    process = processes.start({"ENABLED_CONTROLLERS": "node,operator"})
    wait_until(lambda: process.part.tally.failed > 0)
    assert processes.store.get(READY) == before
    assert processes.store.find(KEY) is None
    set_ready(processes.store)


def test_minimal_object_disables_nothing(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    """A missing section has its defaults, and a warning names it. The object stays as it is."""
    processes.create({})
    process = processes.start()
    processes.await_condition(TRUE)
    assert process.live.now == processes.in_force()
    assert f"{KIND} 'default' has no controllers: the defaults apply, and nothing is disabled" in caplog.text
    processes.change(node(leakGracePeriod="1h"))
    wait_until(lambda: process.live.now.leak_grace_seconds == 3600)
    assert process.live.now == processes.in_force(**node(leakGracePeriod="1h"))
    assert "has no controllers.policy, controllers.workloadEndpoint, controllers.serviceAccount," in caplog.text
    assert "controllers.node.hostEndpoint: the defaults apply" in caplog.text
    assert processes.store.get(KEY).value.spec == node(leakGracePeriod="1h")


def test_invalid_value_keeps_the_last_valid_ones(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    """A condition names field, value and remedy. A process that begins then takes what was in force."""
    valid = node(hostEndpoint={"autoCreate": "Enabled"})
    processes.create(valid)
    process = processes.start()
    before = processes.await_condition(TRUE)
    processes.change(node(leakGracePeriod="soon", hostEndpoint={"autoCreate": "Disabled"}))
    found = processes.await_condition(FALSE)
    problem = "spec.controllers.node.leakGracePeriod = 'soon' is not a duration: give one such as 90s, 5m or 1h30m"
    assert found["reason"] == "InvalidValue"
    assert found["message"].startswith(f"The last valid values stay in force. {problem}")
    assert before["reason"] == "Valid"
    assert problem in caplog.text
    assert process.live.now == processes.in_force(**valid)
    status = processes.await_status(condition)
    assert status["runningConfig"]["controllers"]["node"]["hostEndpoint"]["autoCreate"] == "Enabled"
    other = processes.start(leads=False)
    wait_until(lambda: other.live.now == processes.in_force(**valid))
    processes.change(node(leakGracePeriod="1m"))
    assert processes.await_condition(TRUE)["reason"] == "Valid"
    for each in (process, other):
        wait_until(lambda each=each: each.live.now == processes.in_force(**node(leakGracePeriod="1m")))  # type: ignore[misc]


# what is in force


def test_variables_override_the_object(processes: Processes) -> None:
    """The prefixed variable wins, and the status shows the variables and the result. The spec stays."""
    spec = {"logSeverityScreen": "Debug"} | node(hostEndpoint={"autoCreate": "Disabled"}, reconcilerPeriod="1h")
    processes.create(spec)
    variables = {
        "LOG_LEVEL": "info",
        "SVC_LOG_LEVEL": "error",
        "AUTO_HOST_ENDPOINTS": "enabled",
        "RECONCILER_PERIOD": "90s",
        "ENABLED_CONTROLLERS": "node,profile",
    }
    process = processes.start(variables)
    status = processes.await_status(condition)
    del variables["LOG_LEVEL"]
    assert status["environmentVars"] == variables
    shown = status["runningConfig"]
    assert shown["logSeverityScreen"] == "Error"
    assert set(shown["controllers"]) == {"node", "namespace"}
    assert shown["controllers"]["node"]["hostEndpoint"]["autoCreate"] == "Enabled"
    assert shown["controllers"]["namespace"] == {"reconcilerPeriod": "1m30s"}
    now = process.live.now
    assert (now.log_level, now.creates_host_endpoints, now.round_seconds("node")) == ("ERROR", True, 90.0)
    processes.change({"logSeverityScreen": "Debug", "healthChecks": "Disabled"})
    wait_until(lambda: not process.live.now.serves_health)
    assert process.live.now.log_level == "ERROR"
    assert processes.store.get(KEY).value.spec == {"logSeverityScreen": "Debug", "healthChecks": "Disabled"}


def test_labels_are_only_synchronized_if_the_datastore_has_copies(processes: Processes) -> None:
    """On the Kubernetes API the status shows that it is off, and the field cannot be set."""
    process = processes.start()
    status = processes.await_status(condition)
    shown = status["runningConfig"]["controllers"]["node"]["syncLabels"]
    assert (shown, process.live.now.syncs_labels) == (("Enabled", True) if processes.has_copies else ("Disabled", False))
    processes.change(node(syncLabels="Disabled", leakGracePeriod="1m"))
    if processes.has_copies:
        wait_until(lambda: not process.live.now.syncs_labels)
        assert processes.await_condition(TRUE)
        return
    found = processes.await_condition(FALSE)
    assert "spec.controllers.node.syncLabels = 'Disabled' is refused: in this datastore the nodes are" in found["message"]
    assert process.live.now.leak_grace_seconds == 900


def test_every_process_follows_and_the_leader_writes(processes: Processes) -> None:
    other = processes.start(leads=False)
    wait_until(lambda: other.part.is_ready)
    other.part.begin_round()
    assert processes.store.find(KEY) is None
    assert not other.part.tally.settled
    leader = processes.start()
    processes.await_condition(TRUE)
    processes.change({"etcdV3CompactionPeriod": "0"})
    for each in (leader, other):
        wait_until(lambda each=each: each.live.now.compaction_seconds == 0)  # type: ignore[misc]
    assert not other.part.tally.settled
    leader.stop()
    other.lead()
    processes.delete()
    assert processes.await_condition(TRUE)
    wait_until(lambda: other.live.now.compaction_seconds == 600)


def test_locked_datastore_is_followed_and_not_written(processes: Processes) -> None:
    set_ready(processes.store, ready=False)
    processes.create({"logSeverityScreen": "Debug"})
    process = processes.start()
    wait_until(lambda: process.part.tally.failed > 0)
    assert process.live.now.log_level == "DEBUG"
    assert processes.store.get(KEY).value.status is None
    set_ready(processes.store)
    assert processes.await_condition(TRUE)


# the status


def test_conditions_of_other_parts_are_published(processes: Processes) -> None:
    """The time of the last transition stays as long as the status does."""
    process = processes.start()
    processes.await_condition(TRUE)
    conditions = process.shared.conditions
    conditions.set(Condition("Releasing", FALSE, "ManyLeaks", "120 addresses: run svcctl ipam release --acknowledge"))
    first = processes.await_condition(FALSE, "Releasing")
    conditions.set(Condition("Releasing", FALSE, "ManyLeaks", "121 addresses"))
    second = condition(
        processes.await_status(lambda found: condition(found, "Releasing").get("message") == "121 addresses"), "Releasing"
    )
    assert second["lastTransitionTime"] == first["lastTransitionTime"]
    assert second["reason"] == "ManyLeaks"
    conditions.set(Condition("Releasing", TRUE, "Normal", "fine"))
    assert processes.await_condition(TRUE, "Releasing")["message"] == "fine"


def test_new_leader_keeps_the_times_of_transitions(processes: Processes) -> None:
    spec = deepcopy(shape.defaults())
    old = {"type": VALID, "status": TRUE, "reason": "x", "message": "x", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    processes.create(spec)
    entry = processes.store.get(KEY)
    entry.value.status = {"conditions": [old], "runningConfig": {}}
    processes.store.write([Update(KEY, entry.value, entry.revision)])
    processes.start()
    found = processes.await_status(lambda found: condition(found).get("reason") == "Valid")
    assert condition(found)["lastTransitionTime"] == "2020-01-01T00:00:00Z"


def test_new_leader_keeps_conditions_until_its_parts_have_judged(processes: Processes) -> None:
    """One that no part of the process will judge goes."""
    first = processes.start()
    stop, clash = Condition("Stop", FALSE, "MassRelease", "x"), Condition("Clash", TRUE, "NameTaken", "x")
    for each in (stop, clash, Condition("Other", TRUE, "x", "x")):
        first.shared.conditions.set(each)
    processes.await_condition(TRUE, "Other")
    first.stop()
    second = processes.start(leads=False)
    conditions = second.shared.conditions
    conditions.await_judgement(stop.kind)
    conditions.await_judgement(clash.kind)
    second.lead()
    status = processes.await_status(lambda found: not condition(found, "Other"))
    assert (condition(status, "Stop")["reason"], condition(status, "Clash")["reason"]) == ("MassRelease", "NameTaken")
    conditions.set(Condition("Stop", TRUE, "Running", "x"))
    conditions.clear("Clash")
    status = processes.await_status(lambda found: not condition(found, "Clash"))
    assert processes.await_condition(TRUE, "Stop")["reason"] == "Running"


def test_round_without_a_difference_writes_nothing(processes: Processes) -> None:
    process = processes.start({"RECONCILER_PERIOD": "1h"})
    processes.await_condition(TRUE)
    wait_until(lambda: not process.part.waiting)
    revision, settled = processes.store.get(KEY).revision, process.part.tally.settled
    for _ in range(3):
        process.part.begin_round()
        wait_until(lambda: process.part.tally.settled > settled)  # noqa: B023
        settled = process.part.tally.settled
    assert processes.store.get(KEY).revision == revision


def test_edited_status_is_reverted(processes: Processes) -> None:
    processes.start()
    processes.await_condition(TRUE)
    entry = processes.store.get(KEY)
    entry.value.status = {"runningConfig": {"logSeverityScreen": "Debug"}, "conditions": []}
    processes.store.write([Update(KEY, entry.value, entry.revision)])
    processes.await_condition(TRUE)
    status = processes.await_status(lambda found: found["runningConfig"].get("controllers"))
    assert status["runningConfig"]["logSeverityScreen"] == "Info"


def test_change_between_read_and_write_is_not_overwritten(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is written again, with the new revision."""
    processes.create(shape.defaults())
    process = processes.start(leads=False)
    wait_until(lambda: process.part.is_ready)
    store = process.shared.store
    write, changes = store.write, [{"logSeverityScreen": "Warning"}]

    def late(writes: Sequence[Write], *, durable: bool = False) -> Any:
        while changes:
            processes.change(changes.pop())
        return write(writes, durable=durable)

    monkeypatch.setattr(store, "write", late)
    process.lead()
    processes.await_status(lambda found: found.get("runningConfig", {}).get("logSeverityScreen") == "Warning")
    assert processes.store.get(KEY).value.spec == {"logSeverityScreen": "Warning"}
    assert process.failures == []


# servers with other schemas


@pytest.fixture
def pruning(kube: Kube) -> Iterator[None]:
    """Have the API server drop the conditions, as older definitions of the kind do."""
    definition = next(each for each in definitions(DEFAULT, DEFAULT.crd_api_version) if each["spec"]["names"]["kind"] == KIND)
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema["properties"]["status"] = {"type": "object", "properties": {"runningConfig": free, "environmentVars": free}}
    kube.apply([definition])
    yield
    install(kube)


@pytest.mark.only_over("orch")
def test_server_that_drops_conditions_is_not_written_again_and_again(processes: Processes, pruning: None) -> None:
    path = f"/apis/{DEFAULT.crd_api_version}/{KIND.lower()}s"
    body = {"apiVersion": DEFAULT.crd_api_version, "kind": KIND, "metadata": {"name": "default"}, "status": {"conditions": []}}
    kube = processes.store._kube  # type: ignore[attr-defined]

    def is_dropped() -> bool:
        found = kube.call("POST", path, body)
        kube.call("DELETE", f"{path}/default")
        return "conditions" not in found.get("status", {})

    wait_until(is_dropped)
    process = processes.start({"RECONCILER_PERIOD": "1h"})
    processes.await_status(lambda found: found.get("runningConfig"))
    wait_until(lambda: not process.part.waiting)
    revision, settled = processes.store.get(KEY).revision, process.part.tally.settled
    process.part.begin_round()
    wait_until(lambda: process.part.tally.settled > settled)
    assert processes.store.get(KEY).revision == revision
    assert "conditions" not in (processes.store.get(KEY).value.status or {})


@pytest.mark.only_over("orch, plain group")
@pytest.mark.parametrize("fate", [Fate.REPLY_LOST, Fate.NEVER_SENT])
def test_status_is_written_once_if_a_reply_is_lost(fate: Fate, processes: Processes, proxy: ApiProxy) -> None:
    """The status has a request of its own, after that for the spec."""
    processes.create({})
    settings = {"orch_api_root": proxy.url, "k8s_auth_token": ADMIN_TOKEN, "api_group": DEFAULT.api_version}
    with closing(OrchStore(settings, DEFAULT)) as store:
        entry = store.get(KEY)
        entry.value.status = {"environmentVars": {"LOG_LEVEL": "info"}}
        proxy.arm(Order(fate, "^PUT .*/default/status"))
        (stored,) = store.write([Update(KEY, entry.value, entry.revision)])
    assert stored == processes.store.get(KEY)
    assert stored is not None
    assert stored.value.status == entry.value.status
