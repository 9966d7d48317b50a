"""Networks of several names profiles on one node, served by one agent."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.cni_runtime import Chain
from harness.netns import Netns
from harness.node import BIN, Called, Node, netconf
from harness.pod import Pod
from svc.attach.journal import Journal
from svc.datastore.api import Update
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.model.keys import ResourceQuery
from svc.model.resource import Resource
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import load_profile

pytestmark = pytest.mark.root

REFERENCE = Path("/usr/lib/cni")
CALICO = load_profile("calico")
CALICO_NETWORK: dict[str, Any] = {"name": "net1", "type": "calico", "ipam": {"type": "calico-ipam", "assign_ipv4": "true"}}
POD_ARGS = "K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default"

MakeSandbox = Callable[[], Netns]


@pytest.fixture
def node(node: Node) -> Node:
    """A node with the executables and a pool of a second names profile."""
    install(node, "calico", CALICO, "10.66.0.0/16")
    return node


def install(node: Node, profile: str, names: Names, cidr: str) -> None:
    node.prepare("install", "--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--names", profile)
    node.prepare("--names", profile, "clusterinfo", "init")
    pool = {"apiVersion": names.api_version, "kind": "IPPool", "metadata": {"name": "pool4"}, "spec": {"cidr": cidr}}
    node.prepare("--names", profile, "pool", "apply", "-f", "-", stdin=json.dumps(pool))


def calico_pod(node: Node, netns: Netns, container: str = "0123456789abcdef", **fields: Any) -> Pod:
    return Pod(node, netns, container, netconf(nodename="node1", **CALICO_NETWORK), plugin="calico", **fields)


def default_pod(node: Node, netns: Netns, container: str = "0123456789abcdef", **fields: Any) -> Pod:
    return Pod(node, netns, container, netconf(nodename="node1"), **fields)


def endpoints(node: Node, names: Names) -> dict[str, Resource]:
    """Return the endpoints by the name of the host's interface."""
    with closing(EmbeddedStore(node.state_dir / EMBEDDED_FILE, names)) as store:
        found = [entry.value for entry in store.list(ResourceQuery("WorkloadEndpoint"))]
        return {str(each.spec["interfaceName"]): each for each in found if isinstance(each, Resource)}


def profile_objects(node: Node, names: Names) -> dict[str, Resource]:
    with closing(EmbeddedStore(node.state_dir / EMBEDDED_FILE, names)) as store:
        found = [entry.value for entry in store.list(ResourceQuery("Profile"))]
        return {each.name: each for each in found if isinstance(each, Resource)}


def links(node: Node) -> set[str]:
    return {link["ifname"] for link in node.netns.ip("link") if link["ifname"] not in ("lo", "uplink")}


def restart_agent(node: Node) -> None:
    node.kill_agent()
    node.start_agent()


def test_two_profiles_share_an_agent(node: Node, sandbox: MakeSandbox) -> None:
    """Each profile has its own keys, interfaces and addresses, even for the same container ID."""
    first, second = default_pod(node, sandbox()), calico_pod(node, sandbox())
    first.add()
    second.add()
    assert first.host_name.startswith("svc")
    assert second.host_name == "cali0123456789a"
    assert links(node) == {first.host_name, second.host_name}
    assert list(endpoints(node, DEFAULT)) == [first.host_name]
    assert list(endpoints(node, CALICO)) == [second.host_name]
    found = endpoints(node, CALICO)[second.host_name]
    assert found.name == "node1-cni-0123456789abcdef-eth0"
    assert found.labels == {"projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "cni"}
    assert second.addresses[0].startswith("10.66.")
    assert first.addresses[0].startswith("10.65.")
    for pod in (first, second):
        assert pod.check().status == 0
        assert pod.add() == pod.result
        pod.delete()
    assert links(node) == set()
    assert endpoints(node, DEFAULT) == endpoints(node, CALICO) == {}


def test_network_gets_the_profile_that_its_endpoints_name(node: Node, sandbox: MakeSandbox) -> None:
    """svc creates it once, and users may change it. The default names profile does not use it."""
    pod, other = calico_pod(node, sandbox(), "c1"), default_pod(node, sandbox(), "c2")
    pod.add()
    other.add()
    assert profile_objects(node, DEFAULT) == {}
    (found,) = profile_objects(node, CALICO).values()
    assert found.metadata.keys() == {"name", "uid", "creationTimestamp"}
    assert (found.name, found.spec) == (
        "net1",
        {
            "ingress": [{"action": "Allow", "source": {"selector": "has(net1)"}}],
            "egress": [{"action": "Allow"}],
            "labelsToApply": {"net1": ""},
        },
    )
    with closing(EmbeddedStore(node.state_dir / EMBEDDED_FILE, CALICO)) as store:
        (entry,) = store.list(ResourceQuery("Profile"))
        store.write([Update(entry.key, Resource("Profile", found.metadata, {"egress": []}), entry.revision)])
    restart_agent(node)
    calico_pod(node, sandbox(), "c3").add()
    assert profile_objects(node, CALICO)["net1"].spec == {"egress": []}


def test_profile_of_a_network_without_policy_allows_all_ingress(node: Node, sandbox: MakeSandbox) -> None:
    calico_pod(node, sandbox(), args=POD_ARGS).add()
    assert profile_objects(node, CALICO)["net1"].spec["ingress"] == [{"action": "Allow"}]


def test_network_that_shares_an_interface_gets_its_profile(node: Node, sandbox: MakeSandbox) -> None:
    first = calico_pod(node, sandbox())
    first.add()
    second = first.copy(config=first.config | {"name": "net2"})
    second.add()
    assert set(profile_objects(node, CALICO)) == {"net1", "net2"}
    assert endpoints(node, CALICO)[first.host_name].spec["profiles"] == ["net1", "net2"]
    second.delete()
    first.delete()


def test_pods_have_the_names_that_calico_uses(node: Node, sandbox: MakeSandbox) -> None:
    """Only the first interface has an endpoint."""
    netns = sandbox()
    first = calico_pod(node, netns, "c2", args=POD_ARGS)
    second = calico_pod(node, netns, "c2", args=POD_ARGS, ifname="eth1")
    first.add()
    second.add()
    assert first.host_name == "cali0d7763386da"
    assert second.host_name.startswith("cali")
    assert [each.name for each in endpoints(node, CALICO).values()] == ["node1-k8s-web--0-eth0"]
    for pod in (second, first):
        assert pod.check().status == 0
        assert pod.add() == pod.result
        pod.delete()
    assert links(node) == set()


@pytest.mark.parametrize("how", ["agent", "one-shot"])
def test_names_of_an_attachment_survive_its_agent(node: Node, sandbox: MakeSandbox, how: str) -> None:
    """The next agent uses them, and so does a one-shot call."""
    first, second = default_pod(node, sandbox()), calico_pod(node, sandbox())
    first.add()
    second.add()
    restart_agent(node)
    assert second.check().status == 0
    if how == "one-shot":
        node.kill_agent()
    second.delete()
    first.delete()
    assert links(node) == set()
    assert endpoints(node, CALICO) == {}


def test_one_shot_add_uses_the_names_of_its_install_record(node: Node, sandbox: MakeSandbox) -> None:
    node.kill_agent()
    pod = calico_pod(node, sandbox())
    pod.add()
    assert list(endpoints(node, CALICO)) == [pod.host_name] == ["cali0123456789a"]
    pod.delete()


def test_recovery_uses_the_names_of_the_attachment(node: Node, sandbox: MakeSandbox) -> None:
    """Recovery of an interrupted ADD removes the endpoint under the keys of its names profile."""
    pod = calico_pod(node, sandbox())
    pod.add()
    node.kill_agent()
    with closing(Journal(node.state_dir / "journal.db")) as journal:
        (record,) = journal.all()
        assert record.profile == "calico"
        record.state = "adding"
        journal.update(record)
    node.start_agent()
    assert endpoints(node, CALICO) == {}
    assert links(node) == set()
    assert pod.add()["ips"] != []
    pod.delete()


def test_gc_uses_the_names_of_the_attachment(node: Node, sandbox: MakeSandbox) -> None:
    """GC of a plugin releases only the attachments of its names profile."""
    pod, other = calico_pod(node, sandbox()), default_pod(node, sandbox())
    pod.add()
    other.add()
    restart_agent(node)
    nothing: dict[str, Any] = {"cni.dev/valid-attachments": []}
    collected = pod.call("GC", **nothing)
    assert collected.status == 0, collected
    assert endpoints(node, CALICO) == {}
    assert links(node) == {other.host_name}
    other.delete()


def test_del_succeeds_after_the_loss_of_the_journal(node: Node, sandbox: MakeSandbox) -> None:
    """DEL then has the names from the installation alone."""
    pod = calico_pod(node, sandbox())
    pod.add()
    node.kill_agent()
    for path in node.state_dir.glob("journal.db*"):
        path.unlink()
    node.start_agent()
    pod.delete()
    assert endpoints(node, CALICO) == {}
    assert links(node) == set()


def test_file_of_a_profile_may_change(node: Node, sandbox: MakeSandbox, tmp_path: Path) -> None:
    """The running agent reads it again. The error about a missing or invalid file names its path."""
    file = tmp_path / "names.toml"
    text = 'plugin = "third"\nipam_plugin = "third-ipam"\nkey_root = "/third"\ninterface_prefix = "thi"\n'
    file.write_text(text)
    install(node, str(file), load_profile(str(file)), "10.67.0.0/16")
    config = netconf(nodename="node1", name="net3", type="third", ipam={"type": "third-ipam"})
    pod = Pod(node, sandbox(), "c1", config, plugin="third")
    pod.add()
    assert pod.host_name.startswith("thi")
    pod.delete()
    file.write_text(text.replace('"thi"', '"4th"'))
    pod.add()
    assert pod.host_name.startswith("4th")
    file.write_text(text.replace("/third", "third"))
    assert f"names profile '{file}': key_root = 'third' is not an absolute path" in pod.failed("CHECK").output["msg"]
    file.unlink()
    assert f"names profile '{file}' cannot be read" in pod.failed("CHECK").output["msg"]
    file.write_text(text)
    pod.delete()
    assert links(node) == set()


def test_call_cannot_choose_the_profile(node: Node, sandbox: MakeSandbox) -> None:
    """The environment of a call has no effect on the profile."""
    pod = default_pod(node, sandbox())
    extra = {"CNI_PROFILE": "calico", "SVC_NAMES": "calico", "SVC_PROFILE": "calico"}
    done = node.call("ADD", pod.config, container=pod.container, netns=pod.netns.path, extra=extra)
    assert done.output["interfaces"][0]["name"].startswith("svc")
    pod.delete()


# installation


@pytest.fixture
def adding(node: Node, sandbox: MakeSandbox) -> Iterator[list[Called]]:
    """Add and delete pods of both profiles during the test. Return the list to which the results are added."""
    pods = [default_pod(node, sandbox(), "first"), calico_pod(node, sandbox(), "second")]
    calls: list[Called] = []
    done = threading.Event()

    def add_and_delete() -> None:
        while not done.is_set():
            for pod in pods:
                calls.extend(pod.call(verb) for verb in ("ADD", "DEL"))

    worker = threading.Thread(target=add_and_delete)
    worker.start()
    try:
        yield calls
    finally:
        done.set()
        worker.join()


def test_installation_does_not_disturb_calls(node: Node, adding: list[Called], tmp_path: Path) -> None:
    """The executables are replaced repeatedly while calls run, also by a different executable."""
    other = tmp_path / "other"
    other.write_bytes((BIN / "svc").read_bytes() + b"\0")
    for number in range(6):
        for profile in ("default", "calico"):
            executable = other if number % 2 else BIN / "svc"
            arguments = ("--bin-dir", str(node.bin_dir), "--socket", str(node.socket), "--names", profile)
            output = node.svcctl("install", *arguments, "--executable", str(executable)).stdout
            assert "installed" in output if number else output
    while len(adding) < 16:
        threading.Event().wait(0.01)
    assert [call for call in adding if call.status] == []


@pytest.mark.skipif(
    not all((REFERENCE / name).exists() for name in ("portmap", "bandwidth")),
    reason="needs Debian's containernetworking-plugins",
)
@pytest.mark.parametrize("names", [DEFAULT, CALICO], ids=["default", "calico"])
def test_installed_network_attaches_a_pod(
    node: Node, sandbox: MakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    """The test runs the installed network list as a runtime does. The reference plugins support CNI 1.0.0 at most."""
    entry = {"type": names.plugin, "name": "net1", "datastore_type": "embedded", "ipam": {"type": names.ipam_plugin}}
    (tmp_path / "entry.json").write_text(json.dumps(entry))
    monkeypatch.setenv("CNI_PATH", str(REFERENCE))
    profile = "calico" if names is CALICO else "default"
    where = ("--bin-dir", str(node.bin_dir), "--conf-dir", str(tmp_path / "net.d"), "--socket", str(node.socket))
    node.svcctl("install", *where, "--names", profile, "--netconf", str(tmp_path / "entry.json"))
    conflist = json.loads((tmp_path / "net.d" / names.conflist).read_text())
    assert conflist["cniVersion"] == "1.0.0"
    chain = Chain(node.netns, [node.bin_dir, REFERENCE], conflist, sandbox())
    result = chain.add()
    assert result["interfaces"][0]["name"].startswith(names.interface_prefix)
    chain.delete()
    assert links(node) == set()


def test_uninstall_removes_the_executables_of_its_profile(node: Node) -> None:
    """Those of the other profile continue to work."""
    node.svcctl("uninstall", "--bin-dir", str(node.bin_dir), "--names", "calico")
    assert sorted(path.name for path in node.bin_dir.iterdir()) == ["svc", "svc-ipam", "svc-ipam.install", "svc.install"]
    assert node.call("STATUS", netconf()).status == 0


# options of the executables

EXECUTABLES = ("svc", "svc-ipam", "calico", "calico-ipam")


def run_option(node: Node, name: str, option: str, config: Any = None) -> subprocess.CompletedProcess[str]:
    stdin = json.dumps(config) if config is not None else ""
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run(
        [node.bin_dir / name, option], input=stdin, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("with_agent", [True, False])
def test_fixes_in_errors_name_the_profile(node: Node, sandbox: MakeSandbox, with_agent: bool) -> None:
    """With the default names profile they name none."""
    if not with_agent:
        node.stop_agent()
    for pod, command in (
        (default_pod(node, sandbox()), "`svcctl pool"),
        (calico_pod(node, sandbox()), "`svcctl --names calico pool"),
    ):
        called = pod.call("ADD", ipam={**pod.config["ipam"], "ipv4_pools": ["unknown"]})
        assert called.status == 1
        assert f"see {command} get`, or create it with {command} apply`" in called.output["details"]
        assert f"{command} get`" in called.stderr


@pytest.mark.parametrize("name", EXECUTABLES)
def test_executables_print_their_version(node: Node, name: str) -> None:
    """The executables print nothing else."""
    done = run_option(node, name, "-v")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"svcctl {done.stdout}" == node.svcctl("--version").stdout


@pytest.mark.parametrize("with_agent", [True, False])
@pytest.mark.parametrize("name", EXECUTABLES)
def test_connection_test_reports_each_check(node: Node, name: str, with_agent: bool) -> None:
    """The test prints one line per check, with an agent and without one."""
    if not with_agent:
        node.stop_agent()
    config = netconf(**CALICO_NETWORK) if "calico" in name else netconf()
    done = run_option(node, name, "-t", config)
    assert (done.returncode, done.stdout) == (0, "network configuration: ok\ndatastore embedded: ok, ready\n")


@pytest.mark.parametrize("with_agent", [True, False])
def test_connection_test_creates_no_store(tmp_path: Path, with_agent: bool) -> None:
    """The configured state directory may be mistyped."""
    with Node(tmp_path / "node", agent=with_agent) as node:
        before = sorted(node.state_dir.glob("*"))
        done = run_option(node, "svc", "-t", netconf())
        output = done.stdout.splitlines()
        assert (done.returncode, output[0]) == (1, "network configuration: ok"), done
        assert output[1].startswith(f"store '{node.state_dir}/store.db' does not exist: ")
        assert sorted(node.state_dir.glob("*")) == before


def test_connection_test_without_a_record_creates_no_store() -> None:
    script = 'mount -t tmpfs tmpfs /var/lib && "$1" -t; echo "exit status $?"; find /var/lib -mindepth 1'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(BIN / "svc")],
        input=json.dumps(netconf()), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    output = done.stdout.splitlines()
    assert (output[0], output[2:]) == ("network configuration: ok", ["exit status 1"]), done
    assert output[1].startswith("store '/var/lib/svc/store.db' does not exist: ")


def test_connection_test_fails_if_an_add_would(node: Node) -> None:
    """Its last line has the cause."""
    node.svcctl("--names", "calico", "clusterinfo", "lock")
    done = run_option(node, "calico", "-t", netconf(**CALICO_NETWORK))
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "network configuration: ok"
    assert "the datastore is locked" in done.stdout.splitlines()[1]
    assert run_option(node, "svc", "-t", netconf()).returncode == 0
    for config in ({}, netconf(mtu=1)):
        assert run_option(node, "svc", "-t", config).returncode == 1
    node.svcctl("--names", "calico", "clusterinfo", "unlock")
    assert run_option(node, "calico", "-t", netconf(**CALICO_NETWORK)).returncode == 0
