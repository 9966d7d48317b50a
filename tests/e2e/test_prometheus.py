"""A real Prometheus that scrapes a real agent, with the rules and the queries of the dashboard."""

import http.client
import json
import shutil
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.enter_netns import entered
from harness.node import Node
from harness.pod import Pod
from harness.polling import wait_until
from harness.prometheus import NO_PROMTOOL

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "svc.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "svc-agents.json"
AGENT, SERVER = "127.0.0.1:9405", "127.0.0.1:9090"
VARIABLES = {"$__rate_interval": "1m", "$job": "svc-agent", "$instance": ".*"}
CONFIGURATION = {
    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
    "rule_files": [str(RULES)],
    "scrape_configs": [{"job_name": "svc-agent", "static_configs": [{"targets": [AGENT]}]}],
}
EMPTY = (  # without such events, or without a Kubernetes API
    "ipam_allocations_gc_reclamations",
    "svc_errors_total",
    "svc_gate_waits_total",
    "svc_netlink_errors_total",
    "svc_policy_waits_total",
    "svc_reconcile_findings",
    "svc_restored_attachments_total",
    "svc_token_expiry_seconds",
)


class Prometheus:
    """A server in the network namespace of a node."""

    def __init__(self, node: Node, directory: Path) -> None:
        self._netns = node.netns
        directory.mkdir()
        (directory / "prometheus.yml").write_text(json.dumps(CONFIGURATION))  # JSON is YAML
        arguments = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={SERVER}")
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", node.netns.name, "prometheus", *arguments], cwd=directory, stdout=log, stderr=log
            )

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        with entered(self._netns), closing(http.client.HTTPConnection(SERVER, timeout=20)) as connection:
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
            answer = json.loads(connection.getresponse().read())
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def query(self, text: str) -> list[Any]:
        """Return the present values of an expression."""
        return list(self.ask("query", query=text)["result"])

    def is_scraping(self) -> bool:
        """Return whether the server has scraped the agent."""
        try:
            return [each["value"][1] for each in self.query('up{job="svc-agent"}')] == ["1"]
        except (OSError, ValueError):  # it does not listen, or is not ready
            assert self._process.poll() is None
            return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server(node: Node, tmp_path: Path) -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip(NO_PROMTOOL)
    node.stop_agent()
    node.start_agent(options=("--metrics", AGENT))
    with closing(Prometheus(node, tmp_path / "prometheus")) as server:
        wait_until(server.is_scraping)
        yield server


def dashboard_queries() -> list[str]:
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            assert "$" not in text, text
            found.append(text)
    return found


def test_dashboard_shows_what_an_agent_serves(server: Prometheus, own_pods: MakePod) -> None:
    """Each query has a result, except for events that did not happen."""
    pods = [own_pods() for _ in range(3)]
    for pod in pods:
        pod.add()
    pods[0].delete()
    wait_until(lambda: [each["value"][1] for each in server.query('svc_calls_total{verb="DEL"}')] == ["1"])
    wait_until(lambda: bool(server.query("rate(svc_calls_total[1m])") and server.query("svc:pool_use:ratio")))
    (calls,) = server.query('svc_call_duration_seconds_count{verb="ADD",outcome="ok"}')
    assert calls["value"][1] == "3"
    empty = [text for text in dashboard_queries() if not server.query(text)]
    assert [text for text in empty if not any(name in text for name in EMPTY)] == []


def test_rules_are_evaluated(server: Prometheus, node: Node) -> None:
    """None fires on a healthy node. The alert of a stopped agent begins at once."""
    wait_until(lambda: all(rule["health"] == "ok" for rule in rules(server)))
    assert [rule["name"] for rule in rules(server) if rule.get("state", "inactive") != "inactive"] == []
    assert {"SvcAgentDown", "SvcFindings", "SvcLeaksReclaimed"} <= {rule["name"] for rule in rules(server)}
    node.stop_agent()
    wait_until(lambda: [rule["name"] for rule in rules(server) if rule.get("state") == "pending"] == ["SvcAgentDown"])
    node.start_agent(options=("--metrics", AGENT))


def rules(server: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
