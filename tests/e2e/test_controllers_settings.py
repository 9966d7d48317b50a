"""Settings of running processes of svc-controllers, changed by svcctl: log, metrics, stacks, health and compaction."""

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.controllers import Cluster, Process, cluster, variables_of
from harness.datastores import EtcdSite, Site, session, set_ready
from harness.documents import document, text
from harness.etcd import free_ports
from harness.kube import Kube
from harness.polling import eventually, wait_until
from harness.svcctl import Cli, cli_on
from svc.datastore.api import Backend, Delete, NotFound
from svc.model.controllers_configuration import KEY, KIND

pytestmark = pytest.mark.server

Json = dict[str, Any]
HEALTH = (sys.executable, "-m", "svc.controllers.main", "health")


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with session(site) as made:
        set_ready(made)
        yield made
        with suppress(NotFound):
            made.write([Delete(KEY)])
    site.clear()


@pytest.fixture
def cli(site: Site, tmp_path: Path, store: Backend) -> Cli:
    return cli_on(site, tmp_path / "ctl")


@pytest.fixture
def controllers(kube: Kube, site: Site, store: Backend, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(kube, tmp_path, variables_of(site)) as made:
        yield made


def apply(cli: Cli, **spec: Any) -> None:
    """Set fields of the configuration as an administrator does."""
    cli.prints("apply", "-f", "-", stdin=text(document(KIND, "default", spec)))


def get(port: int, path: str = "/metrics", host: str = "127.0.0.1") -> tuple[int, str]:
    """Return status and text; 0 if nothing listens, or the server ends."""
    with closing(http.client.HTTPConnection(host, port, timeout=20)) as connection:
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        except OSError:
            return 0, ""


def samples(port: int) -> dict[str, float]:
    lines = [line for line in get(port)[1].splitlines() if not line.startswith("#")]
    return {name.removeprefix("svc_"): float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def probe(process: Process, option: str) -> tuple[int, str]:
    """Return exit status and output of the command that Kubernetes runs as a probe."""
    variables = {"HEALTH_FILE": str(process.log.with_suffix(".health"))}
    done = subprocess.run([*HEALTH, option], capture_output=True, text=True, env=variables)
    return done.returncode, done.stdout + done.stderr


def condition(store: Backend, kind: str) -> Json:
    entry = store.find(KEY)
    found = ((entry.value.status if entry else None) or {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})


def test_processes_follow_changes_without_a_restart(controllers: Cluster, cli: Cli, store: Backend) -> None:
    """The leader writes the status. Another process that cannot serve the ports reports it, and serves them later."""
    leader = controllers.start()
    leader.await_lead()
    metrics, stacks = free_ports(2)
    apply(cli, prometheusMetricsPort=metrics, debugProfilePort=stacks, logSeverityScreen="Debug")
    wait_until(lambda: get(metrics)[0] == get(stacks, "/stacks")[0] == 200)
    assert "thread MainThread" in get(stacks, "/stacks")[1]
    other = controllers.start()
    other.await_line(f"spec.prometheusMetricsPort = {metrics} cannot be served: Address already in use: give a port")
    eventually(lambda: condition(store, "PortsServed"), lambda found: found.get("status") == "True")
    assert leader.terminate() == 0
    other.await_lead()
    other.await_line("a full round of")  # at level DEBUG
    wait_until(lambda: samples(metrics).get("controllers_leads") == 1)
    apply(cli, prometheusMetricsPort=0, debugProfilePort=0, logSeverityScreen="Error")
    wait_until(lambda: get(metrics)[0] == get(stacks, "/stacks")[0] == 0)
    assert other.terminate() == 0
    assert "is not served on port" not in other.text  # at level INFO


def test_metrics_have_the_numbers_of_each_controller(controllers: Cluster, cli: Cli, site: Site) -> None:
    (port,) = free_ports(1)
    process = controllers.start()
    apply(cli, prometheusMetricsPort=port)
    rounds = 'controllers_round_seconds_count{controller="configuration"}'
    found = eventually(lambda: samples(port), lambda found: found.get(rounds, 0) > 0)
    assert found["controllers_leads"] == 1
    assert found['controllers_failures_total{controller="configuration"}'] == 0
    assert found['controllers_settled_total{controller="configuration"}'] > 0
    assert found['controllers_writes_total{controller="configuration"}'] > 0
    assert 'controllers_queue_length{controller="configuration"}' in found
    assert found['controllers_condition{condition="ConfigurationValid",status="True",reason="Valid"}'] == 1
    assert any(name.startswith("store_requests_total") and 'store="api"' in name for name in found)
    assert found[f'store_up{{store="{"etcdv3" if isinstance(site, EtcdSite) else "orch"}"}}'] == 1
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert get(port, "/stacks")[0] == 404
    assert process.terminate() == 0


def test_probes_follow_the_process_and_the_setting(controllers: Cluster, cli: Cli) -> None:
    process = controllers.start()
    for option, aspect in (("--live", "live"), ("--ready", "ready"), ("-l", "live"), ("-r", "ready")):
        wait_until(lambda option=option: probe(process, option)[0] == 0)  # type: ignore[misc]
        assert probe(process, option)[1] == f"process {process.pid} is {aspect}\n"
    apply(cli, healthChecks="Disabled")
    wait_until(lambda: "health checks are disabled" in probe(process, "-l")[1])
    apply(cli, healthChecks="Enabled")
    wait_until(lambda: "is ready" in probe(process, "-r")[1])
    assert process.terminate() == 0
    status, reason = probe(process, "-l")
    assert status == 1
    assert "the program has not begun" in reason


def test_invalid_value_is_reported_by_the_running_process(controllers: Cluster, cli: Cli, store: Backend) -> None:
    """svcctl refuses the value, so another program has written it."""
    process = controllers.start(LOG_LEVEL="info")
    eventually(lambda: condition(store, "ConfigurationValid"), lambda found: found.get("status") == "True")
    refused = cli.fails("apply", "-f", "-", stdin=text(document(KIND, "default", {"etcdV3CompactionPeriod": "ten"})))
    problem = "spec.etcdV3CompactionPeriod = 'ten' is not a duration: give one such as 90s, 5m or 1h30m"
    assert problem in refused

    def broken(value: Any) -> Any:
        return replace(value, spec=value.spec | {"etcdV3CompactionPeriod": "ten"})

    store.update(KEY, broken)
    found = eventually(lambda: condition(store, "ConfigurationValid"), lambda found: found.get("status") == "False")
    assert problem in found["message"]
    assert problem in process.text
    apply(cli, etcdV3CompactionPeriod="10m")
    eventually(lambda: condition(store, "ConfigurationValid"), lambda found: found.get("status") == "True")
    assert process.terminate() == 0


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_compaction_follows_the_configuration(controllers: Cluster, cli: Cli, site: Site) -> None:
    assert isinstance(site, EtcdSite)
    process = controllers.start()
    process.await_lead()
    first = site.running.put("/svc-test", "1")
    site.running.put("/svc-test", "2")
    assert site.running.has_history(first)
    apply(cli, etcdV3CompactionPeriod="1s")
    wait_until(lambda: not site.running.has_history(first))
    site.running.erase("/svc-test")
    assert process.terminate() == 0
