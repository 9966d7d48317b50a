"""svcctl status: its verdict and its time if agent or datastore do not answer, on any terminal; attachments and explain."""

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cluster_node import IMPATIENT, ClusterNode
from harness.datastores import Site, furnish
from harness.gate_server import serving, silent
from harness.netns import Netns
from harness.node import BIN, Node, netconf
from harness.pod import Pod
from harness.polling import eventually
from harness.stopped import stopped

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]

GOOD, DEGRADED, DOWN = 0, 3, 4
LIMIT_SECONDS = 1.0  # that the command waits; a source without a limit of its own takes 5 s
ATTEMPTS = 5  # a command that starts slowly gives its sources as much time again


def command(node: Node, *arguments: str) -> list[str]:
    return [str(BIN / "svcctl"), "--state-dir", str(node.state_dir), "--run-dir", str(node.run_dir), *arguments]


def environment(**changes: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")} | changes


def status(node: Node, *options: str) -> tuple[int, Any]:
    """Run `svcctl status -o json`. Return its exit status and the document, for which it must not wait too long.

    Tests share their processors: the time in which it computes, or waits for a processor, does not count."""
    words, waits = command(node, *options, "status", "-o", "json"), []
    for _ in range(ATTEMPTS):
        began = time.monotonic()
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            running, runnable, _ = map(int, Path(f"/proc/{process.pid}/schedstat").read_text().split())
            waits.append(time.monotonic() - began - (running + runnable) / 1e9)
            shown, told = process.communicate()
        assert told == b""
        if waits[-1] < LIMIT_SECONDS:
            return process.returncode, json.loads(shown)
    raise AssertionError(f"{words} has waited {waits} s")


def status_of_running_agent(node: Node, *options: str) -> tuple[int, Any]:
    """Return the first status with an answer of the agent, which can take more than its second on busy processors."""
    return eventually(lambda: status(node, *options), lambda found: found[1]["state"])


def screen(node: Node, **changes: str) -> str:
    done = subprocess.run(command(node, "status"), capture_output=True, check=False, env=environment(**changes))
    assert b"Traceback" not in done.stderr, done.stderr
    return done.stdout.decode("ascii")


def texts(document: Any) -> str:
    return "\n".join(f"{problem['level']}: {problem['text']}: {problem['fix']}" for problem in document["problems"])


def test_healthy_node_is_good(own_pods: MakePod, node: Node) -> None:
    own_pods().add()
    code, document = status_of_running_agent(node)
    assert (code, document["verdict"], document["problems"]) == (GOOD, "good", [])
    assert document["state"]["agent"]["pid"] == node.agent_pid
    assert document["attachments"] == {"added": 1}
    assert [(pool["name"], pool["in_use"]) for pool in document["datastore"]["pools"]] == [("pool4", 1), ("pool6", 0)]
    lines = screen(node).splitlines()
    assert lines[0] == f"svc on {os.uname().nodename.lower()}: good"
    assert [line.split()[0] for line in lines[1:]] == ["agent", "datastore", "pools", "pool6", "calls", "attachments"]


def test_stopped_agent_is_down(own_pods: MakePod, node: Node) -> None:
    """The journal still shows the attachments. The fix resumes the process."""
    own_pods().add()
    with stopped(node.agent_pid):
        code, document = status(node)
    assert (code, document["verdict"], document["state"]) == (DOWN, "down", None)
    assert f"resume it with `kill -CONT {node.agent_pid}`" in texts(document)
    assert document["attachments"] == {"added": 1}
    assert document["datastore"]["pools"]
    assert status_of_running_agent(node)[0] == GOOD


def test_killed_agent_is_down(own_pods: MakePod, node: Node) -> None:
    own_pods().add()
    node.kill_agent()
    code, document = status(node)
    assert (code, document["verdict"]) == (DOWN, "down")
    assert "the agent does not run: " in texts(document)
    assert "systemctl start svc-agent" in texts(document)
    assert document["attachments"] == {"added": 1}
    assert screen(node).splitlines()[0].endswith(": down")
    node.start_agent()


@contextmanager
def silent_datastore(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the options that name a datastore that accepts connections and never answers."""
    file = tmp_path / "netconf.json"
    with serving(silent) as server:
        file.write_text(json.dumps(netconf(datastore_type="etcdv3", etcd_endpoints=f"http://127.0.0.1:{server.port}")))
        yield "--netconf", str(file)


def test_everything_down_is_answered_in_time(node: Node, tmp_path: Path) -> None:
    with silent_datastore(tmp_path) as options, stopped(node.agent_pid):
        code, document = status(node, *options)
    assert (code, document["verdict"], document["state"], document["datastore"]) == (DOWN, "down", None, None)
    assert "down: the agent " in texts(document)
    assert "degraded: the datastore has not answered" in texts(document)


def test_silent_datastore_is_degraded(node: Node, tmp_path: Path) -> None:
    with silent_datastore(tmp_path) as options:
        code, document = status_of_running_agent(node, *options)
    assert (code, document["verdict"]) == (DEGRADED, "degraded")
    assert document["state"]["agent"]["pid"] == node.agent_pid


@pytest.mark.parametrize("site", ["etcdv3"], indirect=True)
def test_pending_release_is_degraded(site: Site, tmp_path: Path, sandbox: Callable[[], Netns]) -> None:
    """Its age and the reason are on the screen."""
    with ClusterNode(tmp_path / "node", "node1", site, agent_program=IMPATIENT) as node:
        furnish(site, "node1")
        site.add_pod("web-0")
        pod = node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
        pod.add()
        with node.cut_off():
            pod.delete()
            code, document = status_of_running_agent(node, "--embedded")
            assert (code, document["verdict"]) == (DEGRADED, "degraded")
            assert "1 release is pending: " in texts(document)
            assert f":{site.port}" in document["pending_releases"][0]["reason"]
            (line,) = [line for line in screen(node).splitlines() if line.startswith("releases")]
            assert line.startswith("releases    default/web-0, for ")
        pod.delete()
        site.clear()


def test_lock_of_the_embedded_store_is_shown_at_once(own_pods: MakePod, node: Node) -> None:
    own_pods().add()
    for words, code, is_ready in (("lock", DEGRADED, False), ("unlock", GOOD, True)):
        node.svcctl("clusterinfo", words)
        found, document = status_of_running_agent(node)
        assert (found, [store["is_ready"] for store in document["datastores"]]) == (code, [is_ready])


@pytest.mark.parametrize("site", ["etcdv3", "orch"], indirect=True)
def test_lock_is_shown_at_once(site: Site, tmp_path: Path, sandbox: Callable[[], Netns]) -> None:
    """The agent probes the datastore every 30 s, and svcctl reads it now. The screen names the node of the network."""
    with ClusterNode(tmp_path / "node", "node1", site) as node, ExitStack() as stack:
        stack.callback(site.clear)
        furnish(site, "node1")
        site.add_pod("web-0")
        pod = node.pod(sandbox(), args="K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default")
        pod.add()
        own = tmp_path / "own.json"
        own.write_text(json.dumps(node.netconf()))
        options = "--netconf", str(own)
        for words, code, is_ready in (("lock", DEGRADED, False), ("unlock", GOOD, True)):
            node.ctl("clusterinfo", words)
            found, document = eventually(
                lambda: status(node, *options), lambda found: found[1]["state"] and found[1]["datastore"]
            )
            assert (found, [store["is_ready"] for store in document["datastores"]]) == (code, [is_ready])
            assert ("the datastore is locked" in texts(document)) is not is_ready
            assert document["nodes"] == ["node1"]
        pod.delete()


def test_narrow_terminal_without_utf_8(own_pods: MakePod, node: Node) -> None:
    """No line is wider than the terminal, and no text is lost."""
    own_pods().add()
    node.kill_agent()
    shown = screen(node, COLUMNS="40", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 40
    assert "systemctlstartsvc-agent" in "".join(shown.split())
    node.start_agent()


def on_terminal(node: Node, *arguments: str, **changes: str) -> bytes:
    """Return what svcctl writes to a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(command(node, *arguments), stdout=follower, stderr=follower, env=environment(**changes)):
        os.close(follower)
        shown = rest_of(leader)
    os.close(leader)
    return shown


def rest_of(leader: int) -> bytes:
    """Return what a terminal shows until the other end is closed."""
    shown = b""
    with suppress(OSError):
        while data := os.read(leader, 4096):
            shown += data
    return shown


def test_colours_follow_the_terminal_and_no_color(node: Node) -> None:
    assert b"\x1b[32m" in on_terminal(node, "status", TERM="xterm")
    assert b"\x1b" not in on_terminal(node, "status", TERM="xterm", NO_COLOR="1")
    assert b"\x1b" not in on_terminal(node, "status", TERM="dumb")
    assert "\x1b" not in screen(node, TERM="xterm")


@pytest.mark.parametrize("options", [["status"], ["status", "--watch"], ["attachments"]])
def test_closed_pipe_is_quiet(node: Node, options: list[str]) -> None:
    with subprocess.Popen(
        command(node, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert b"Traceback" not in told
    assert process.returncode == 1


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_watch_repeats_until_it_is_interrupted(node: Node, output: str) -> None:
    """Ctrl-C ends it with status 130 and without a message. Each document is complete."""
    with subprocess.Popen(
        command(node, "status", "--watch", "-o", output), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        time.sleep(8)  # a busy machine takes seconds to start it
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (130, b"")
    if output == "json":
        verdicts = [json.loads(line)["verdict"] for line in shown.splitlines()]
    elif output == "yaml":
        verdicts = [document["verdict"] for document in yaml.safe_load_all(shown)]
    else:
        verdicts = [line.split(": ")[1] for line in shown.decode().splitlines() if line.startswith("svc on ")]
    assert len(verdicts) >= 2
    assert set(verdicts) == {"good"}


def test_watch_replaces_the_screen_of_a_terminal(node: Node) -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(command(node, "status", "--watch"), stdout=follower, env=environment(TERM="xterm")) as process:
        os.close(follower)
        shown = b""
        while shown.count(b"\x1b[H\x1b[J") < 2:
            shown += os.read(leader, 4096)
        process.send_signal(signal.SIGINT)
        rest_of(leader)  # a screen that nobody reads would hold the process up
    os.close(leader)
    assert process.returncode == 130


# attachments and explain


def test_attachments_are_shown_with_and_without_an_agent(own_pods: MakePod, node: Node) -> None:
    pod = own_pods(container="0123456789abcdef")
    pod.add()
    heading, row = node.svcctl("attachments").stdout.splitlines()
    assert heading.split() == ["NETWORK", "CONTAINER", "IFNAME", "STATE", "POD", "ADDRESSES", "INTERFACE", "INDEX", "SINCE"]
    assert row.split()[:6] == ["net", "0123456789abc", "eth0", "added", pod.addresses[0], pod.host_name]
    (document,) = json.loads(node.svcctl("attachments", "--container", "0123", "-o", "json").stdout)
    assert (document["container"], document["addresses"]) == ("0123456789abcdef", pod.addresses)
    assert yaml.safe_load(node.svcctl("attachments", "-o", "yaml").stdout) == document
    assert json.loads(node.svcctl("attachments", "--container", "9", "-o", "json").stdout) == []
    node.kill_agent()
    alone = node.svcctl("attachments")
    assert alone.stdout.splitlines()[1].split()[:6] == row.split()[:6]
    assert alone.stderr.startswith("warning: the agent does not run: ")
    node.start_agent()


def test_explain_shows_the_calls_of_a_container(own_pods: MakePod, node: Node) -> None:
    """A container that is not remembered is an error that says how many calls are."""
    pod = own_pods(container="0123456789abcdef", log_level="debug")
    pod.add()
    assert pod.check().status == 0
    pod.delete()
    shown = node.svcctl("explain", "--container", "0123").stdout
    calls = [line for line in shown.splitlines() if "0123456789abcdef eth0 ok" in line and not line.startswith(" ")]
    assert [line.split()[2] for line in calls] == ["ADD", "CHECK", "DEL"]
    assert "  phases    queue " in shown
    assert "  decision  IPv4: pools: pool4; dropped: none\n" in shown
    assert f"  decision  IPv4: {pod.addresses[0]} of block " in shown
    assert " DEBUG " in shown
    documents = json.loads(node.svcctl("explain", "--container", "0123456789abcdef", "-o", "json").stdout)
    assert [call["verb"] for call in documents] == ["ADD", "CHECK", "DEL"]
    refused = node.svcctl("explain", "--container", "other", check=False)
    assert (refused.returncode, "no call of container 'other' is remembered" in refused.stderr) == (1, True)
    assert "is empty" in node.svcctl("explain", "--container", "", check=False).stderr
