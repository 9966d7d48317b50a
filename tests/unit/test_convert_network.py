"""svcctl convert: network configurations and the operator's Installation, both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.documents import Json, text
from harness.svcctl import Cli
from svc.ctl.commands.convert import INCOMPLETE
from svc.names import DEFAULT
from svc.netconf import netconf as netconfs
from svc.netconf.names_profiles import load_profile

CALICO = load_profile("calico")

PLUGIN: Json = {
    "type": "calico",
    "log_level": "info",
    "log_file_path": "/var/log/calico/cni/cni.log",
    "datastore_type": "kubernetes",
    "nodename": "node1",
    "nodename_file": "/var/lib/calico/nodename",
    "mtu": 1440,
    "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "ipv4_pools": ["10.0.0.0/16"]},
    "policy": {"type": "k8s"},
    "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig", "k8s_api_root": "https://192.0.2.1:6443"},
    "container_settings": {"allow_ip_forwarding": True},
    "policy_setup_timeout_seconds": 10,
}
PORTMAP: Json = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
TUNING: Json = {"type": "tuning", "sysctl": {"net.core.somaxconn": "100"}}
LIST: Json = {"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [PLUGIN, PORTMAP, TUNING]}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def run(cli: Cli, given: Any, *arguments: str, target: str = "default") -> tuple[Any, list[str]]:
    """Return the first document of the result, and what has no equivalent. Check the exit status."""
    content = given if isinstance(given, str) else json.dumps(given)
    done = cli("convert", "-f", "-", "--to", target, *arguments, stdin=content)
    notes = [line.removeprefix("no equivalent: <stdin>: document 1: ") for line in done.stderr.splitlines()]
    assert done.exit_code == (INCOMPLETE if notes else 0), done.output
    return next(yaml.safe_load_all(done.stdout)), notes


def test_network_list_gets_the_names_of_the_target(cli: Cli) -> None:
    """The network's name stays, because it is a part of every handle."""
    found, notes = run(cli, LIST)
    assert notes == []
    assert found == LIST | {
        "plugins": [
            {
                **{name: value for name, value in PLUGIN.items() if name != "kubernetes"},
                "type": "svc",
                "log_file_path": "/var/log/svc/cni/cni.log",
                "datastore_type": "orch",
                "nodename_file": "/var/lib/svc/nodename",
                "ipam": {**PLUGIN["ipam"], "type": "svc-ipam"},
                "policy": {"type": "orch"},
                "orch": {"kubeconfig": "/etc/cni/net.d/svc-kubeconfig", "orch_api_root": "https://192.0.2.1:6443"},
            },
            PORTMAP,
            TUNING,
        ]
    }
    netconfs.read(found["plugins"][0] | {"name": "n", "cniVersion": "1.0.0"}, DEFAULT)


def test_conversion_there_and_back_changes_nothing(cli: Cli) -> None:
    there, _ = run(cli, LIST)
    assert run(cli, there, target="calico") == (LIST, [])


def test_fields_that_svc_does_not_read_are_named(cli: Cli) -> None:
    """The fields of the CNI specification stay."""
    odd = PLUGIN | {"windows_use_single_network": True, "capabilities": {"bandwidth": True}, "prevResult": None}
    odd["ipam"] = PLUGIN["ipam"] | {"unknown": 1}
    found, notes = run(cli, odd | {"name": "n", "cniVersion": "1.0.0"})
    assert [note.split(":")[0] for note in notes] == ["ipam.unknown", "windows_use_single_network", "prevResult"]
    assert found["capabilities"] == {"bandwidth": True}
    assert not {"windows_use_single_network", "prevResult", "unknown"} & {*found, *found["ipam"]}


def test_fields_that_only_svc_reads_are_named(cli: Cli) -> None:
    own = {"type": "svc", "name": "n", "cniVersion": "1.0.0", "datastore_type": "embedded", "ipam": {"type": "svc-ipam"}}
    found, notes = run(cli, own | {"readiness_gates_tls_verify": False}, target="calico")
    assert [note.split(":")[0] for note in notes] == ["datastore_type", "readiness_gates_tls_verify"]
    assert found["datastore_type"] == "embedded"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "bridge", "name": "n"}, "type = 'bridge' is of no known names profile"),
        ({"plugins": [{"type": "bridge"}, PORTMAP]}, "type = ['bridge', 'portmap'] is of no known names profile"),
        (PLUGIN | {"name": "n", "mtu": "big"}, "mtu = 'big' is a string"),
        (PLUGIN, "name is missing"),
    ],
    ids=str,
)
def test_wrong_networks_are_errors(cli: Cli, given: Json, message: str) -> None:
    assert message in cli.fails("convert", "-f", "-", "--to", "default", stdin=json.dumps(given))


def installation(names: Any = CALICO, cni: Json | None = None, network: Json | None = None, **spec: Any) -> str:
    content = {"cni": cni} if cni else {}
    section = {names.operator_network: network} if network is not None else {}
    document = {"apiVersion": names.operator_api_version, "kind": "Installation", "metadata": {"name": "default"}}
    return text(document | {"spec": {**content, **section, **spec}})


POOL: Json = {"cidr": "10.0.0.0/16", "encapsulation": "VXLAN", "nodeSelector": "projectcalico.org/rack == 'a'"}
RENAMED = POOL | {"nodeSelector": "svc.internal/rack == 'a'"}
NETWORK: Json = {
    "ipPools": [
        POOL,
        {"cidr": "fd00::/48"},
    ],
    "mtu": 1400,
    "containerIPForwarding": "Enabled",
    "hostPorts": "Disabled",
    "linuxPolicySetupTimeoutSeconds": 5,
    "sysctl": [{"key": "net.core.somaxconn", "value": "100"}],
}
LOGGING: Json = {"cni": {"logSeverity": "Debug", "logFileMaxSize": "2Gi", "logFileMaxAgeDays": 3, "logFileMaxCount": 7}}


def test_installation_becomes_a_network(cli: Cli) -> None:
    found, notes = run(cli, installation(network=NETWORK, logging=LOGGING, registry="x/"), "--as", "netconf")
    plugin, *others = found["plugins"]
    assert [each["type"] for each in others] == ["bandwidth", "tuning"]
    assert others[1] == TUNING
    expected = {
        "type": "svc",
        "datastore_type": "orch",
        "mtu": 1400,
        "container_settings": {"allow_ip_forwarding": True},
        "policy_setup_timeout_seconds": 5,
        "log_level": "DEBUG",
        "log_file_max_size": 2048,
        "log_file_max_age": 3,
        "log_file_max_count": 7,
        "ipam": {"type": "svc-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
    }
    assert expected.items() <= plugin.items()
    assert [note.split(":")[0] for note in notes] == ["spec.registry", "spec.calicoNetwork.ipPools"]


def test_installation_with_host_local_becomes_a_network(cli: Cli) -> None:
    """The older spelling of the type of IPAM is read too."""
    for field in ("type", "plugin"):
        found, _ = run(cli, installation(cni={"type": "Calico", "ipam": {field: "HostLocal"}}), "--as", "netconf")
        assert found["plugins"][0]["ipam"] == {"type": "host-local", "ranges": [[{"subnet": "usePodCidr"}]]}


def test_pools_of_an_installation_become_objects(cli: Cli) -> None:
    done = cli("convert", "-f", "-", "--to", "default", "--as", "pools", stdin=installation(network=NETWORK))
    assert done.exit_code == 0, done.output
    four, six = yaml.safe_load_all(done.stdout)
    assert (four["metadata"]["name"], six["metadata"]["name"]) == ("default-ipv4-ippool", "default-ipv6-ippool")
    assert four["spec"]["vxlanMode"] == "Always"
    assert four["spec"]["nodeSelector"] == "svc.internal/rack == 'a'"
    assert cli.changes("apply", "-f", "-", stdin=done.stdout).count("created") == 2


def test_network_becomes_an_installation_and_back(cli: Cli) -> None:
    """Fields that the resource cannot express are named."""
    found, notes = run(cli, LIST, "--as", "installation", target="calico")
    assert [note.split(":")[0] for note in notes] == ["nodename", "nodename_file"]
    assert found["spec"] == {
        "cni": {"type": "Calico", "ipam": {"type": "Calico"}},
        "calicoNetwork": {
            "hostPorts": "Enabled",
            "containerIPForwarding": "Enabled",
            "mtu": 1440,
            "linuxPolicySetupTimeoutSeconds": 10,
            "sysctl": [{"key": "net.core.somaxconn", "value": "100"}],
            "ipPools": [{"cidr": "10.0.0.0/16"}],
        },
        "logging": {"cni": {"logSeverity": "Info"}},
    }
    back, _ = run(cli, found, "--as", "netconf", target="calico")
    plugin = back["plugins"][0]
    for field in ("mtu", "policy_setup_timeout_seconds", "container_settings", "policy", "datastore_type"):
        assert plugin[field] == PLUGIN[field]


def test_networks_without_an_installation_are_named(cli: Cli) -> None:
    own = {"type": "svc", "name": "n", "cniVersion": "1.0.0", "datastore_type": "etcdv3", "num_queues": 2}
    own |= {
        "ipam": {"type": "svc-ipam", "ipv4_pools": ["named"], "assign_ipv6": "true"},
        "etcd_endpoints": "http://192.0.2.1:2379",
    }
    found, notes = run(
        cli, {"name": "n", "cniVersion": "1.0.0", "plugins": [own, {"type": "firewall"}]}, "--as", "installation"
    )
    assert found["spec"]["svcNetwork"] == {"hostPorts": "Disabled", "ipPools": []}
    assert [note.split(":")[0] for note in notes] == [
        "ipam.ipv4_pools", "ipam.assign_ipv4", "ipam.assign_ipv6", "num_queues", "etcd_endpoints", "plugin 'firewall'",
        "datastore_type",
    ]  # fmt: skip


def test_installation_gets_the_names_of_the_target(cli: Cli) -> None:
    """Fields for other components stay, and are named."""
    given = installation(
        cni={"type": "Calico", "ipam": {"plugin": "Calico"}}, network={"ipPools": [POOL], "nodeX": 1}, variant="V"
    )
    found, notes = run(cli, given)
    assert (found["apiVersion"], found["kind"]) == (DEFAULT.operator_api_version, "Installation")
    assert found["spec"] == {
        "cni": {"type": "Svc", "ipam": {"type": "Svc"}}, "svcNetwork": {"ipPools": [RENAMED], "nodeX": 1}, "variant": "V",
    }  # fmt: skip
    assert [note.split(":")[0] for note in notes] == ["spec.svcNetwork.nodeX", "spec.variant"]


@pytest.mark.parametrize(
    ("given", "form", "message"),
    [
        (installation(cni={"type": "AmazonVPC"}), "netconf", "spec.cni.type = 'AmazonVPC' is not served"),
        (installation(network={"hostPorts": "Maybe"}), "netconf", "spec.calicoNetwork.hostPorts = 'Maybe' is not known"),
        (installation(network={"sysctl": [1]}), "netconf", "spec.calicoNetwork.sysctl[0] = 1 is a number"),
        (installation(network={"mtu": "big"}), "netconf", "spec.calicoNetwork.mtu = 'big' is not an MTU"),
        (installation(logging={"cni": {"logFileMaxSize": "big"}}), "netconf", "logFileMaxSize = 'big' is not a size"),
        (installation(network={"ipPools": [{"cidr": "x"}]}), "pools", "spec.calicoNetwork.ipPools[0].cidr = 'x' is not a CIDR"),
        (installation(logging={"cni": "x"}), "netconf", "spec.logging.cni = 'x' is a string"),
        (json.dumps(LIST), "pools", "a network configuration cannot become pools"),
        (
            text({"apiVersion": "svc.internal/v3", "kind": "IPPool"}),
            "netconf",
            "an object of kind IPPool cannot become netconf",
        ),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_wrong_input_is_an_error(cli: Cli, given: str, form: str, message: str) -> None:
    assert message in cli.fails("convert", "-f", "-", "--to", "default", "--as", form, stdin=given)
