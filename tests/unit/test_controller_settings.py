"""Settings of the controllers: variables, their prefix, their errors, and the network configuration in their place."""

import json
from pathlib import Path
from typing import Any

import pytest

from svc.controllers import assembly
from svc.controllers.configuration import Configuration
from svc.controllers.configuration_merge import Overrides
from svc.controllers.settings import CONTROLLERS, Settings, read
from svc.model.errors import CallerError
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

ETCD = {"kind": "etcdv3"}


def settings(netconf: Path | None = None, /, **environment: str) -> Settings:
    return read({"KUBERNETES_SERVICE_HOST": "10.96.0.1"} | environment, DEFAULT, netconf)


def errors(**environment: str) -> list[str]:
    with pytest.raises(CallerError) as caught:
        settings(**environment)
    return list(caught.value.errors)


def test_defaults() -> None:
    periods = dict.fromkeys(CONTROLLERS, 300.0)
    assert CONTROLLERS == ("policy", "namespace", "serviceaccount", "workloadendpoint", "node", "loadbalancer")
    assert settings() == Settings(CONTROLLERS, ETCD, {}, Configuration(periods=periods), Overrides())
    assert settings(LOG_LEVEL=" ", ENABLED_CONTROLLERS="") == settings()
    assert settings().has_copies


def test_operator_runs_only_if_it_is_named() -> None:
    assert "operator" not in settings().controllers
    assert settings(ENABLED_CONTROLLERS="node,operator").controllers == ("node", "operator")


def test_variables_are_read(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").touch()
    found = settings(
        ENABLED_CONTROLLERS="profile, serviceaccount,namespace",
        DATASTORE_TYPE="etcdv3",
        KUBECONFIG=str(tmp_path / "kubeconfig"),
        LOG_LEVEL="Debug",
        RECONCILER_PERIOD="1h30m",
        COMPACTION_PERIOD="0",
        HEALTH_ENABLED="false",
        SYNC_NODE_LABELS="true",
        SVC_SYNC_NODE_LABELS="false",
        AUTO_HOST_ENDPOINTS="Enabled",
        SVC_HEALTH_FILE="/run/health",
        NODE_WORKERS="many",
        ETCD_ENDPOINTS="http://10.0.0.1:2379",
    )
    assert found == Settings(
        ("namespace", "serviceaccount"),
        ETCD | {"etcd_endpoints": "http://10.0.0.1:2379"},
        {"kubeconfig": str(tmp_path / "kubeconfig")},
        Configuration(
            log_level="DEBUG",
            compaction_seconds=0.0,
            periods=dict.fromkeys(CONTROLLERS, 5400.0),
            syncs_labels=False,
            serves_health=False,
            creates_host_endpoints=True,
        ),
        found.overrides,
        "/run/health",
    )
    assert found.overrides.variables == {
        "ENABLED_CONTROLLERS": "profile, serviceaccount,namespace",
        "LOG_LEVEL": "Debug",
        "RECONCILER_PERIOD": "1h30m",
        "COMPACTION_PERIOD": "0",
        "HEALTH_ENABLED": "false",
        "SVC_SYNC_NODE_LABELS": "false",
        "AUTO_HOST_ENDPOINTS": "Enabled",
    }


@pytest.mark.parametrize("word", ["orch", "kubernetes", "Kubernetes"])
def test_api_server_may_be_the_datastore(word: str, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").touch()
    found = settings(DATASTORE_TYPE=word, KUBECONFIG=str(tmp_path / "kubeconfig"), ETCD_ENDPOINTS="not read")
    assert found.datastore == {"kind": "orch", "kubeconfig": str(tmp_path / "kubeconfig")}
    assert not found.has_copies


@pytest.mark.parametrize("names", [DEFAULT, load_profile("calico")])
def test_variable_with_the_prefix_is_preferred(names: Any) -> None:
    prefix = names.environment_prefix
    given = {"LOG_LEVEL": "loud", f"{prefix}LOG_LEVEL": "error", f"{prefix}ETCD_ENDPOINTS": "http://10.0.0.1:2379"}
    others = {"OTHER_LOG_LEVEL": "debug", "ETCD_ENDPOINTS": "x", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    found = read(given | others, names, None)
    assert found.configuration.log_level == "ERROR"
    assert found.datastore["etcd_endpoints"] == "http://10.0.0.1:2379"


@pytest.mark.parametrize(
    ("variable", "text", "parts"),
    [
        ("ENABLED_CONTROLLERS", "policy,zebra", ["has 'zebra', which is not a controller", *CONTROLLERS, "profile"]),
        ("ENABLED_CONTROLLERS", "policy,", ["has '', which is not a controller"]),
        ("OPERATOR_NAMESPACE", "A b/../x", ["is not the name of a namespace", "lower-case letters"]),
        ("DATASTORE_TYPE", "consul", ["is not known", "etcdv3", "orch", "kubernetes"]),
        ("KUBECONFIG", "/missing", ["cannot be read"]),
        ("LOG_LEVEL", "loud", ["is not known", "debug", "info", "warning", "error", "fatal", "none"]),
        ("RECONCILER_PERIOD", "0", ["is too short: give at least 1s"]),
        ("RECONCILER_PERIOD", "5", ["is not a duration", "5m"]),
        ("RECONCILER_PERIOD", "-5m", ["is not a duration"]),
        ("COMPACTION_PERIOD", "ten", ["is not a duration", "h"]),
        ("COMPACTION_PERIOD", "1ms", ["is too short: give at least 1s, such as 10m, or 0 for none"]),
        ("HEALTH_ENABLED", "yes", ["is not known", "enabled, true, disabled, false"]),
        ("SYNC_NODE_LABELS", "2", ["is not known"]),
        ("AUTO_HOST_ENDPOINTS", "on", ["is not known"]),
        ("ETCD_ENDPOINTS", "10.0.0.1", ["is not the URL of an etcd server", "give URLs such as"]),
    ],
)
@pytest.mark.parametrize("prefix", ["", "SVC_"])
def test_error_names_variable_value_and_allowed_words(prefix: str, variable: str, text: str, parts: list[str]) -> None:
    (line,) = errors(**{f"{prefix}{variable}": text})
    assert line.startswith(f"{prefix}{variable} = {text!r} ")
    assert [part for part in parts if part not in line] == []


def test_certificates_of_etcd_are_checked() -> None:
    given = {"ETCD_ENDPOINTS": "https://10.0.0.1:2379", "SVC_ETCD_CERT_FILE": "/missing"}
    (first, *_) = errors(**given)
    assert first.startswith("SVC_ETCD_CERT_FILE = '/missing' needs ETCD_KEY_FILE")


def test_access_to_the_api_server_is_required_outside_of_a_pod() -> None:
    assert errors(KUBERNETES_SERVICE_HOST="") == ["KUBECONFIG is missing: name a kubeconfig file; only a pod needs none"]


def test_all_errors_are_reported_together() -> None:
    found = errors(
        ENABLED_CONTROLLERS="flannelmigration", LOG_LEVEL="loud", RECONCILER_PERIOD="x", DATASTORE_TYPE="y", ETCD_SCHEME="ftp"
    )
    assert [line.partition(" ")[0] for line in found] == [
        "ENABLED_CONTROLLERS", "LOG_LEVEL", "RECONCILER_PERIOD", "DATASTORE_TYPE", "ETCD_SCHEME",
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1.0), ("1.5h", 5400.0), ("1m500ms", 60.5), ("1000000us", 1.0)])
def test_durations_are_those_of_go(text: str, seconds: float) -> None:
    assert settings(RECONCILER_PERIOD=text).configuration.round_seconds("policy") == pytest.approx(seconds)


def netconf(path: Path, **fields: Any) -> Path:
    document = {"name": "n", "type": "svc", "ipam": {"type": "svc-ipam"}, **fields}
    path.write_text(json.dumps(document))
    return path


def test_network_configuration_replaces_variables_of_the_datastore(tmp_path: Path) -> None:
    file = netconf(
        tmp_path / "net.json",
        datastore_type="etcdv3",
        etcd_endpoints="http://10.0.0.2:2379",
        orch={"kubeconfig": "/etc/kubeconfig"},
        policy={"type": "orch"},
    )
    found = settings(file, DATASTORE_TYPE="orch", ETCD_ENDPOINTS="x", LOG_LEVEL="error")
    assert found.datastore == ETCD | {"etcd_endpoints": "http://10.0.0.2:2379"}
    assert found.api == {"kubeconfig": "/etc/kubeconfig"}
    assert found.configuration.log_level == "ERROR"


def test_kubeconfig_completes_a_network_configuration(tmp_path: Path) -> None:
    file = netconf(tmp_path / "net.json", datastore_type="etcdv3", etcd_endpoints="http://10.0.0.2:2379")
    assert settings(file, KUBECONFIG=str(file)).api == {"kubeconfig": str(file)}


def test_store_of_one_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="datastore_type = 'embedded' is the store of one node: name a file"):
        settings(netconf(tmp_path / "net.json", datastore_type="embedded"))


def test_controller_without_parts_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its name is known, but it does nothing."""
    monkeypatch.setattr(assembly, "_IN_BOTH", {})
    monkeypatch.setattr(assembly, "_WITH_ETCD", {})
    settings = read({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "ENABLED_CONTROLLERS": "loadbalancer"}, DEFAULT, None)
    assert assembly.assemble(settings, None) == []  # type: ignore[arg-type]
    assert "controller loadbalancer is not in this version: it does nothing" in caplog.text
