"""KubeControllersConfiguration that a defective program has written to a real etcd: the last valid values stay in force."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from harness.datastores import EtcdSite, session, set_ready
from harness.polling import wait_until
from harness.running_controller import Running, running
from svc.controllers.conditions import FALSE, TRUE, Condition
from svc.controllers.configuration_resource import VALID, ConfigurationResource
from svc.controllers.settings import read
from svc.datastore.orch.client import Client
from svc.model.controllers_configuration import KEY, KIND
from svc.model.kv_codec import Codec
from svc.names import DEFAULT

pytestmark = pytest.mark.server

PATH = Codec(DEFAULT).path(KEY)
VARIABLES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "ETCD_ENDPOINTS": "http://127.0.0.1:1"}
BYTES = "\x00\x01 no JSON"


def document(spec: Any, status: Any = None, **metadata: Any) -> str:
    kind = {"apiVersion": "projectcalico.org/v3", "kind": KIND}
    return json.dumps({**kind, "metadata": {"name": KEY.name, **metadata}, "spec": spec, "status": status})


def node(**fields: Any) -> Any:
    return {"controllers": {"node": fields}}


@pytest.fixture
def start(etcd_site: EtcdSite, client: Client) -> Iterator[Callable[..., Running]]:
    """Return a function that starts the part as a process does. None ends because of a bug."""
    with session(etcd_site) as own:
        set_ready(own)
    started = []
    with ExitStack() as stack:

        def begin(*, leads: bool = True) -> Running:
            store = stack.enter_context(session(etcd_site))
            settings = read(VARIABLES, DEFAULT, None)
            made = stack.enter_context(
                running(client, store, lambda shared: ConfigurationResource(shared, settings), leads=leads)
            )
            started.append(made)
            return made

        yield begin
        assert [failure for made in started for failure in made.failures] == []
    etcd_site.clear()


def condition(process: Running) -> Condition | None:
    return next((each for each in process.shared.conditions.all() if each.kind == VALID), None)


def reason(process: Running) -> str:
    found = condition(process)
    return found.reason if found else ""


@pytest.mark.parametrize(
    "damaged",
    [
        BYTES,
        " ",
        "[]",
        document("x"),
        document([]),
        document({}, status=5),
        document({}, annotations=5),
        document({}, annotations={"a": 5}),
        document({}, labels=[]),
    ],
)
def test_object_that_cannot_be_decoded_leaves_the_last_valid_values(
    damaged: str, etcd_site: EtcdSite, start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    """It stays as it is, so that an administrator can correct it, and both processes follow the correction."""
    valid = document(node(leakGracePeriod="1m"))
    etcd_site.running.put(PATH, valid)
    leader, other = start(), start(leads=False)
    for each in (leader, other):
        wait_until(lambda each=each: each.live.now.leak_grace_seconds == 60)  # type: ignore[misc]
    wait_until(lambda: '"ConfigurationValid"' in etcd_site.running.get(PATH))
    etcd_site.running.put(PATH, damaged)
    wait_until(lambda: reason(leader) == "Undecodable")
    found = condition(leader)
    assert found is not None
    assert found.status == FALSE
    assert found.message.startswith("The last valid values stay in force. ")
    assert PATH in found.message
    wait_until(lambda: "is tried again in" in caplog.text)
    assert [each.live.now.leak_grace_seconds for each in (leader, other)] == [60, 60]
    assert etcd_site.running.get(PATH) == damaged
    etcd_site.running.put(PATH, valid)  # the same values as before
    wait_until(lambda: reason(leader) == "Valid")
    etcd_site.running.put(PATH, document(node(leakGracePeriod="2m")))
    for each in (leader, other):
        wait_until(lambda each=each: each.live.now.leak_grace_seconds == 120)  # type: ignore[misc]


def test_process_that_begins_with_an_object_that_cannot_be_decoded_leaves_it(
    etcd_site: EtcdSite, start: Callable[..., Running]
) -> None:
    etcd_site.running.put(PATH, BYTES)
    process = start()
    wait_until(lambda: reason(process) == "Undecodable" and process.part.tally.failed > 0)
    assert etcd_site.running.get(PATH) == BYTES
    etcd_site.running.put(PATH, document(node(leakGracePeriod="1m")))
    wait_until(lambda: process.live.now.leak_grace_seconds == 60 and reason(process) == "Valid")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"controllers": []}, "spec.controllers"),
        ({"controllers": {"node": "x"}}, "spec.controllers.node"),
        (node(hostEndpoint=[1]), "spec.controllers.node.hostEndpoint"),
        (node(hostEndpoint={"templates": {"a": 1}}), "spec.controllers.node.hostEndpoint.templates"),
        (node(hostEndpoint={"templates": [5]}), "spec.controllers.node.hostEndpoint.templates[0]"),
        (node(leakGracePeriod=90), "spec.controllers.node.leakGracePeriod"),
        ({"prometheusMetricsPort": "9094"}, "spec.prometheusMetricsPort"),
        ({"logSeverityScreen": True}, "spec.logSeverityScreen"),
    ],
)
def test_wrong_type_leaves_the_last_valid_values(
    spec: Any, field: str, etcd_site: EtcdSite, start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    etcd_site.running.put(PATH, document(node(leakGracePeriod="1m")))
    process = start()
    wait_until(lambda: process.live.now.leak_grace_seconds == 60 and reason(process) == "Valid")
    etcd_site.running.put(PATH, document(spec))
    wait_until(lambda: reason(process) == "InvalidValue")
    found = condition(process)
    assert found is not None
    assert f"{field} = " in found.message
    assert f"{field} = " in caplog.text
    assert process.live.now.leak_grace_seconds == 60
    wait_until(lambda: '"InvalidValue"' in etcd_site.running.get(PATH))
    other = start(leads=False)  # takes what the status shows
    wait_until(lambda: other.live.now.leak_grace_seconds == 60)


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": 5},
        {"conditions": [5, {}, {"type": []}, {"type": {}, "status": []}]},
        {"conditions": [{"type": VALID, "status": ["x"], "lastTransitionTime": 5}]},
        {"runningConfig": 5, "environmentVars": []},
    ],
)
def test_status_of_wrong_types_is_replaced(status: Any, etcd_site: EtcdSite, start: Callable[..., Running]) -> None:
    etcd_site.running.put(PATH, document(node(leakGracePeriod="1m"), status))
    process = start()

    def shown() -> Any:
        return json.loads(etcd_site.running.get(PATH))["status"]

    wait_until(lambda: shown() != status)
    assert [(each["type"], each["status"]) for each in shown()["conditions"]] == [(VALID, TRUE)]
    assert shown()["runningConfig"]["controllers"]["node"]["leakGracePeriod"] == "1m0s"
    assert process.live.now.leak_grace_seconds == 60
