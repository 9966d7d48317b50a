"""KubeControllersConfiguration without I/O: its rules, its defaults, and what is in force with an object and variables."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.admin.controllers_configuration import check, check_document
from svc.controllers.condition_documents import documents
from svc.controllers.conditions import Condition, Conditions
from svc.controllers.configuration import Configuration, HostEndpointTemplate, Live
from svc.controllers.configuration_merge import Overrides, configuration_of, decide, effective, running_config
from svc.controllers.settings import CONTROLLERS, read
from svc.datastore.api import Backend
from svc.model import controllers_configuration as shape
from svc.model.resource import Resource
from svc.names import DEFAULT

NONE = Overrides()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(("Enabled", "5m", "0")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from((*shape.FIELD_NAMES, *shape.CONTROLLERS, shape.PERIOD, "hostEndpoint", "templates")), inner
        )
    ),
    max_leaves=12,
)


def resource(spec: Any, status: Any = None) -> Resource:
    return Resource(shape.KIND, {"name": "default"}, spec, status)


def node(**fields: Any) -> dict[str, Any]:
    return {"controllers": {"node": fields}}


def template(**fields: Any) -> dict[str, Any]:
    return node(hostEndpoint={"templates": [{"generateName": "a", **fields}]})


def of_environment(**variables: str) -> Overrides:
    return read({"KUBERNETES_SERVICE_HOST": "10.96.0.1"} | variables, DEFAULT, None).overrides


# rules


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"logSeverityScreen": "loud"}, "spec.logSeverityScreen = 'loud' is not known: give one of None, Debug, Info"),
        ({"healthChecks": True}, "spec.healthChecks = true is not known: give one of Enabled, Disabled"),
        ({"etcdV3CompactionPeriod": 10}, "spec.etcdV3CompactionPeriod = 10 is a number: give a string"),
        ({"etcdV3CompactionPeriod": "ten"}, "spec.etcdV3CompactionPeriod = 'ten' is not a duration: give one such as 90s"),
        ({"etcdV3CompactionPeriod": "1ns"}, "spec.etcdV3CompactionPeriod = '1ns' is too short: give at least 1s, such as 10m"),
        ({"prometheusMetricsPort": 65536}, "spec.prometheusMetricsPort = 65536 is not a port: give 1 to 65535, or 0 for none"),
        ({"debugProfilePort": "9095"}, "spec.debugProfilePort = '9095' is not a port"),
        ({"controllers": []}, "spec.controllers = [] is an array: give an object"),
        ({"controllers": {"policy": {"reconcilerPeriod": "0"}}}, "spec.controllers.policy.reconcilerPeriod = '0' is too short"),
        (node(leakGracePeriod="-5m"), "spec.controllers.node.leakGracePeriod = '-5m' is not a duration"),
        (node(syncLabels="On"), "spec.controllers.node.syncLabels = 'On' is not known"),
        (node(hostEndpoint={"autoCreate": "yes"}), "spec.controllers.node.hostEndpoint.autoCreate = 'yes' is not known"),
        (node(hostEndpoint={"templates": [{}]}), "spec.controllers.node.hostEndpoint.templates[0].generateName is missing"),
        (template(interfaceCIDRs=["10.0.0.0/33"]), "templates[0].interfaceCIDRs[0] = '10.0.0.0/33' is not a CIDR"),
        (template(interfacePattern="("), "templates[0].interfacePattern = '(' is not a regular expression"),
        (template(nodeSelector="x =="), "templates[0].nodeSelector = 'x ==' is not a selector"),
        (template(labels={"a": 1}), "templates[0].labels.a = 1 is a number"),
        (template(generateName="A_"), "templates[0].generateName = 'A_' cannot be part of a name"),
        (
            node(hostEndpoint={"templates": [{"generateName": "a"}, {"generateName": "a"}]}),
            "templates[1].generateName = 'a' is given twice",
        ),
        (
            {"controllers": {"loadBalancer": {"assignIPs": "Some"}}},
            "loadBalancer.assignIPs = 'Some' is not known: give one of All",
        ),
    ],
    ids=str,
)
def test_each_field_is_checked(spec: Any, error: str) -> None:
    """The error names field, value and fix."""
    (found,) = check(spec, has_copies=True)
    assert error in found.line


@pytest.mark.parametrize("has_copies", [True, False])
def test_defaults_are_valid(has_copies: bool) -> None:
    assert list(check(shape.defaults(), has_copies=has_copies)) == []
    assert configuration_of(shape.defaults(), has_copies=True) == Configuration(periods=dict.fromkeys(CONTROLLERS, 300.0))


def test_sections_are_the_controllers() -> None:
    assert sorted(map(str.lower, shape.CONTROLLERS)) == sorted(CONTROLLERS)


def test_label_sync_cannot_be_disabled_without_copies() -> None:
    """Nodes in the Kubernetes API have their labels."""
    (found,) = check(node(syncLabels="Disabled"), has_copies=False)
    assert found.line.startswith("spec.controllers.node.syncLabels = 'Disabled' is refused")
    assert list(check(node(syncLabels="Disabled"), has_copies=True)) == []
    assert list(check(node(syncLabels="Enabled"), has_copies=False)) == []
    assert not configuration_of(shape.defaults(), has_copies=False).syncs_labels


def test_fields_of_other_versions_are_only_accepted_from_the_datastore() -> None:
    spec = {"controllers": {"node": {"novel": 1}}}
    assert next(error.line for error in check(spec, has_copies=True)).startswith("spec.controllers.node.novel = 1 is not known")
    assert list(check(spec, has_copies=True, open_ended=True)) == []


@given(st.dictionaries(st.sampled_from(shape.FIELD_NAMES), JSON), JSON)
def test_any_object_leads_to_a_configuration(spec: Any, status: Any) -> None:
    """No document ends the program."""
    found = decide(resource(spec, {"runningConfig": status}), None, NONE, has_copies=True)
    assert isinstance(configuration_of(found.settings, has_copies=True), Configuration)
    shape.missing_sections(found.spec)
    running_config(found.settings, CONTROLLERS, has_copies=False)


# what is in force


def test_each_field_takes_effect() -> None:
    given = {
        "generateName": "a",
        "interfaceCIDRs": ["10.0.0.0/8"],
        "interfacePattern": "eth.*",
        "nodeSelector": "has(a)",
        "labels": {"b": "c"},
        "annotations": {"d": "e"},
    }
    spec = {
        "logSeverityScreen": "Warning",
        "healthChecks": "Disabled",
        "etcdV3CompactionPeriod": "0",
        "prometheusMetricsPort": 9094,
        "debugProfilePort": 9095,
        "controllers": {
            "node": {
                "reconcilerPeriod": "1m",
                "syncLabels": "Disabled",
                "leakGracePeriod": "0s",
                "hostEndpoint": {"autoCreate": "Enabled", "createDefaultHostEndpoint": "Disabled", "templates": [given]},
            },
            "serviceAccount": {"reconcilerPeriod": "2m"},
            "loadBalancer": {"assignIPs": "RequestedServicesOnly"},
        },
    }
    assert configuration_of(effective(spec, NONE), has_copies=True) == Configuration(
        log_level="WARNING",
        serves_health=False,
        compaction_seconds=0.0,
        metrics_port=9094,
        debug_port=9095,
        periods=dict.fromkeys(CONTROLLERS, 300.0) | {"node": 60.0, "serviceaccount": 120.0},
        syncs_labels=False,
        leak_grace_seconds=0.0,
        creates_host_endpoints=True,
        creates_default_host_endpoint=False,
        host_endpoint_templates=(HostEndpointTemplate("a", ("10.0.0.0/8",), "eth.*", "has(a)", {"b": "c"}, {"d": "e"}),),
        assigns_all_services=False,
    )


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (
            template(labels={"a": "not valid"}),
            "spec.controllers.node.hostEndpoint.templates[0].labels.a = 'not valid' is not a label value: give ",
        ),
        (
            template(labels={"not valid": "a"}),
            "spec.controllers.node.hostEndpoint.templates[0].labels key = 'not valid' is not a label key: give ",
        ),
        (
            {"prometheusMetricsPort": 9094, "debugProfilePort": 9094},
            "spec.debugProfilePort = 9094 is also prometheusMetricsPort, and only one of the two can be served: give another",
        ),
    ],
)
def test_value_that_the_controllers_would_leave_out_is_refused_when_it_is_written(spec: Any, error: str) -> None:
    """The controllers accept it, because the other settings must not depend on it."""
    assert [*check(spec, has_copies=True)] == []
    (found,) = check_document(cast(Backend, SimpleNamespace(atomic=True)), resource(spec), None)
    assert found.startswith(error)


@pytest.mark.parametrize("spec", [{}, node(hostEndpoint=None), {"prometheusMetricsPort": 0, "debugProfilePort": 0}])
def test_valid_document_is_accepted(spec: Any) -> None:
    assert [*check_document(cast(Backend, SimpleNamespace(atomic=True)), resource(spec), None)] == []


@pytest.mark.parametrize("level", shape.LEVELS)
def test_every_level_is_one_of_python(level: str) -> None:
    found = configuration_of(effective({"logSeverityScreen": level}, NONE), has_copies=True).log_level
    assert found == {"None": "CRITICAL", "Fatal": "CRITICAL", "Panic": "CRITICAL"}.get(level, level.upper())


@pytest.mark.parametrize("spec", [{}, {"controllers": None}, node(), {"controllers": {"node": None}}, node(hostEndpoint=None)])
def test_minimal_object_has_every_default(spec: Any) -> None:
    assert effective(spec, NONE) == shape.defaults()
    assert shape.missing_sections(spec)


def test_missing_sections_are_named() -> None:
    assert shape.missing_sections({}) == ["controllers"]
    found = shape.missing_sections(node(reconcilerPeriod="1m"))
    assert found[-1] == "controllers.node.hostEndpoint"
    assert set(found) >= {"controllers.policy", "controllers.loadBalancer"}
    assert shape.missing_sections(shape.defaults()) == []


def test_environment_overrides_the_object() -> None:
    overrides = of_environment(
        AUTO_HOST_ENDPOINTS="disabled",
        RECONCILER_PERIOD="7s",
        LOG_LEVEL="debug",
        SVC_LOG_LEVEL="error",
        COMPACTION_PERIOD="1h",
        HEALTH_ENABLED="false",
        SYNC_NODE_LABELS="true",
    )
    spec = shape.merged(node(hostEndpoint={"autoCreate": "Enabled"}, syncLabels="Disabled"), {"logSeverityScreen": "Info"})
    found = configuration_of(effective(spec, overrides), has_copies=True)
    assert not found.creates_host_endpoints
    assert found.syncs_labels
    assert not found.serves_health
    assert (found.log_level, found.compaction_seconds, set(found.periods.values())) == ("ERROR", 3600.0, {7.0})
    assert overrides.variables["SVC_LOG_LEVEL"] == "error"
    assert "LOG_LEVEL" not in overrides.variables


def test_last_valid_spec_stays_in_force() -> None:
    first = decide(resource({"logSeverityScreen": "Debug"}), None, NONE, has_copies=True)
    broken = decide(resource({"logSeverityScreen": "loud", "healthChecks": "Disabled"}), first.spec, NONE, has_copies=True)
    assert broken.settings == first.settings
    assert [error.field for error in broken.errors] == ["spec.logSeverityScreen"]
    later = decide(resource({"healthChecks": "Disabled"}), broken.spec, NONE, has_copies=True)
    assert (later.settings["logSeverityScreen"], later.settings["healthChecks"]) == ("Info", "Disabled")


@pytest.mark.parametrize("has_copies", [True, False])
def test_process_that_begins_with_an_invalid_object_takes_what_was_in_force(has_copies: bool) -> None:
    """Host endpoints would be deleted otherwise."""
    before = effective(node(hostEndpoint={"autoCreate": "Enabled"}), NONE)
    status = {"runningConfig": running_config(before, CONTROLLERS, has_copies=has_copies)}
    found = decide(resource(node(leakGracePeriod="x"), status), None, NONE, has_copies=has_copies)
    assert configuration_of(found.settings, has_copies=has_copies).creates_host_endpoints
    for unusable in (None, {"runningConfig": 3}, {"runningConfig": node(leakGracePeriod="y")}):
        assert (
            decide(resource(node(leakGracePeriod="x"), unusable), None, NONE, has_copies=has_copies).settings
            == shape.defaults()
        )


def test_status_shows_the_enabled_controllers_with_durations_of_go() -> None:
    settings = effective(shape.merged(node(reconcilerPeriod="90s"), {"etcdV3CompactionPeriod": "0"}), NONE)
    before = deepcopy(settings)
    found = running_config(settings, ("node", "policy"), has_copies=False)
    assert set(found["controllers"]) == {"node", "policy"}
    assert found["etcdV3CompactionPeriod"] == "0s"
    assert found["controllers"]["node"]["reconcilerPeriod"] == "1m30s"
    assert found["controllers"]["node"]["syncLabels"] == "Disabled"
    assert settings == before
    assert running_config(settings, ("node",), has_copies=True)["controllers"]["node"]["syncLabels"] == "Enabled"


_OBJECTS = st.recursive(
    st.none() | st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


@given(_OBJECTS, _OBJECTS)
def test_merging_keeps_every_value_of_the_upper_object(lower: Any, upper: Any) -> None:
    found = shape.merged(lower, upper)
    assert found.keys() == lower.keys() | {name for name, value in upper.items() if value is not None}
    assert shape.merged(found, upper) == found
    for name, value in upper.items():
        if value is not None and not isinstance(value, dict):
            assert found[name] == value


# the parts that share it


def test_configuration_is_unknown_until_it_was_read() -> None:
    live = Live(Configuration(), is_known=False)
    told: list[Configuration] = []
    live.on_change(told.append)
    live.replace(Configuration())
    assert live.is_known
    assert told == []
    live.replace(Configuration(debug_port=1))
    assert told == [live.now] == [Configuration(debug_port=1)]


def test_condition_keeps_the_time_of_its_transition() -> None:
    (first,) = documents([Condition("Valid", "True", "Valid", "fine")], None, 0.0)
    assert first == {
        "type": "Valid", "status": "True", "reason": "Valid", "message": "fine", "lastTransitionTime": "1970-01-01T00:00:00Z",
    }  # fmt: skip
    (same,) = documents([Condition("Valid", "True", "Other", "fine, too")], [first], 60.0)
    assert (same["reason"], same["lastTransitionTime"]) == ("Other", "1970-01-01T00:00:00Z")
    (other,) = documents([Condition("Valid", "False", "Bad", "not fine")], [first, 3], 60.0)
    assert other["lastTransitionTime"] == "1970-01-01T00:01:00Z"


def test_condition_that_no_part_has_judged_is_that_of_the_earlier_leader() -> None:
    earlier = [{"type": kind, "status": "False", "reason": "x"} for kind in ("Awaited", "Judged", "Unknown")]
    found = documents([Condition("Judged", "True", "Fine", "fine")], [*earlier, {"type": []}], 0.0, {"Awaited", "Other"})
    assert [(each["type"], each["status"]) for each in found] == [("Awaited", "False"), ("Judged", "True")]


def test_kind_is_awaited_until_a_part_has_judged() -> None:
    conditions, told = Conditions(), list[int]()
    conditions.on_change(lambda: told.append(1))
    for kind in ("A", "B", "B"):
        conditions.await_judgement(kind)
    first = Condition("A", "True", "Fine", "fine")
    conditions.set(first)
    assert (conditions.with_awaited(), len(told)) == (((first,), frozenset({"B"})), 3)
    for _ in range(2):
        conditions.clear("B")
        conditions.set(first)
    assert (conditions.with_awaited(), len(told)) == (((first,), frozenset()), 4)
    conditions.await_judgement("A")
    assert (conditions.with_awaited(), conditions.all(), len(told)) == (((), frozenset({"A"})), (), 5)
