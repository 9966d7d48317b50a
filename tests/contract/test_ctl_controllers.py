"""svcctl on KubeControllersConfiguration, on every datastore."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.datastores import Site, session, set_ready
from harness.documents import document, shown, text
from harness.site_fixtures import ON_EACH_DATASTORE
from harness.svcctl import Cli, cli_on
from svc.datastore.api import Backend, Delete, NotFound
from svc.model.controllers_configuration import KEY, KIND

pytestmark = ON_EACH_DATASTORE


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with session(site) as store:
        set_ready(store)
        yield store
        with suppress(NotFound):
            store.write([Delete(KEY)])
    site.clear()


@pytest.fixture
def cli(site: Site, home: Path, store: Backend) -> Cli:
    return cli_on(site, home)


def configuration(**spec: Any) -> str:
    return text(document(KIND, "default", spec))


def test_configuration_is_applied_shown_and_deleted(cli: Cli) -> None:
    spec = {"logSeverityScreen": "Debug", "prometheusMetricsPort": 9094, "controllers": {"node": {"leakGracePeriod": "1h"}}}
    assert cli.changes("apply", "-f", "-", stdin=configuration(**spec)).startswith(f"{KIND.lower()}/default created")
    for word in ("kcc", "kccs", KIND.lower(), f"{KIND.lower()}s", KIND):
        assert [each["spec"] for each in shown(cli, word)] == [spec]
    heading, row = cli.prints("get", "kcc").splitlines()[:2]
    assert heading.split() == ["NAME", "LOG", "HEALTH", "CHECKS", "METRICS", "PORT", "HOST", "ENDPOINTS"]
    assert row.split()[:3] == ["default", "Debug", "9094"]
    printed = cli.prints("get", "kcc", "-o", "yaml")
    assert cli.changes("apply", "-f", "-", stdin=printed).startswith(f"{KIND.lower()}/default unchanged")
    assert cli.changes("delete", "kcc", "default", "--yes").startswith(f"{KIND.lower()}/default deleted")


def test_only_the_name_default_is_accepted(cli: Cli) -> None:
    found = cli.fails("apply", "-f", "-", stdin=text(document(KIND, "other", {})))
    assert "metadata.name = 'other'" in found
    assert "default" in found


def test_each_invalid_field_is_reported(cli: Cli, store: Backend) -> None:
    spec = {
        "logSeverityScreen": "loud",
        "debugProfilePort": -1,
        "controllers": {"policy": {"reconcilerPeriod": "0s"}, "node": {"color": 1}},
    }
    found = cli.fails("apply", "-f", "-", stdin=configuration(**spec))
    for problem in (
        "spec.logSeverityScreen = 'loud' is not known: give one of None, Debug, Info, Warning, Error, Fatal, Panic",
        "spec.debugProfilePort = -1 is not a port: give 1 to 65535, or 0 for none",
        "spec.controllers.policy.reconcilerPeriod = '0s' is too short: give at least 1s, such as 5m",
        "spec.controllers.node.color = 1 is not known",
    ):
        assert problem in found
    assert store.find(KEY) is None


def test_label_synchronization_cannot_be_disabled_on_the_kubernetes_api(cli: Cli, site: Site) -> None:
    document = configuration(controllers={"node": {"syncLabels": "Disabled"}})
    if site.config["datastore_type"] == "orch":
        assert "spec.controllers.node.syncLabels = 'Disabled' is refused" in cli.fails("apply", "-f", "-", stdin=document)
    else:
        assert "created" in cli.changes("apply", "-f", "-", stdin=document)


def test_applied_document_keeps_the_status(cli: Cli, store: Backend) -> None:
    cli.prints("apply", "-f", "-", stdin=configuration())
    status = {"environmentVars": {"LOG_LEVEL": "info"}, "runningConfig": {"logSeverityScreen": "Info"}}

    def published(value: Any) -> Any:
        return replace(value, status=status)

    store.update(KEY, published)
    cli.prints("apply", "-f", "-", stdin=configuration(healthChecks="Disabled"))
    found = store.get(KEY).value
    assert (found.spec, found.status) == ({"healthChecks": "Disabled"}, status)
