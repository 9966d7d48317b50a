"""svcctl: help, version, reservations, lists, deeply nested input, warnings, labels of nodes, bindings."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import pytest
import yaml

from harness.ipam import put_pool
from harness.svcctl import Cli
from svc import __version__
from svc.ctl.main import main
from svc.datastore.embedded import EmbeddedStore
from svc.ipam.requests import Assign
from svc.ipam.service import IpamService

CHECKOUT = Path(__file__).parents[2]

POOL = """
apiVersion: svc.internal/v3
kind: IPPool
metadata: {name: pool4}
spec: {cidr: 10.77.0.0/24}
"""

RESERVATION = """
apiVersion: svc.internal/v3
kind: IPReservation
metadata: {name: gateways}
spec: {reservedCIDRs: [10.77.0.0/30, 'fd77::1']}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def commands(command: click.Command = main, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, *path, name)


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_every_command_has_help_and_version(cli: Cli, command: tuple[str, ...]) -> None:
    """Help has a long and a short option, also in commands that are loaded late."""
    output = cli.prints(*command, "--help")
    assert output.startswith("Usage:")
    assert "-h, --help" in output
    assert cli.prints(*command, "-h") == output
    assert cli.prints(*command, "--version") == f"svcctl {__version__}\n"


@pytest.mark.parametrize("arguments", [("--version",), ("run", "--version"), ("-h",), ("run", "-h")], ids=" ".join)
def test_agent_has_help_and_version(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "svc.agent.main", *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("usage: " if "-h" in arguments else f"svc-agent {__version__}\n")


def test_reservations_are_applied_shown_and_deleted(cli: Cli) -> None:
    """Printed reservations can be applied again."""
    assert cli.changes("reservation", "apply", "-f", "-", stdin=RESERVATION) == "gateways created\n"
    assert cli.prints("reservation", "get") == "NAME      CIDRS\ngateways  10.77.0.0/30,fd77::1\n"
    printed = cli.prints("reservation", "get", "gateways", "-o", "yaml")
    assert cli.changes("reservation", "apply", "-f", "-", stdin=printed) == "gateways unchanged\n"
    more = RESERVATION.replace("10.77.0.0/30", "10.77.0.0/29")
    assert cli.changes("reservation", "apply", "-f", "-", stdin=more) == "gateways updated\n"
    assert cli.changes("reservation", "delete", "gateways") == "gateways deleted\n"
    assert "IP reservation 'gateways' does not exist" in cli.fails("reservation", "delete", "gateways")


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        ("{}", ["spec.reservedCIDRs is missing or empty"]),
        ("{reservedCIDRs: 10.0.0.0/8}", ["spec.reservedCIDRs = '10.0.0.0/8' is a string: give an array of CIDRs"]),
        (
            "{reservedCIDRs: [10.77.0.0/30, x, '7'], other: 1}",
            [
                "spec.other = 1 is not a field of an IP reservation",
                "spec.reservedCIDRs[1] = 'x' is not a CIDR",
                "spec.reservedCIDRs[2] = '7' is not a CIDR",
            ],
        ),
    ],
)
def test_invalid_reservations_change_nothing(cli: Cli, spec: str, errors: list[str]) -> None:
    """Each error has its own line."""
    document = RESERVATION.replace("{reservedCIDRs: [10.77.0.0/30, 'fd77::1']}", spec)
    lines = cli.fails("reservation", "apply", "-f", "-", stdin=document).splitlines()
    assert [error in line for error, line in zip(errors, lines[-len(errors) :], strict=True)] == [True] * len(errors)
    assert len(lines) == (1 if len(errors) == 1 else 1 + len(errors))
    assert cli.prints("reservation", "get").splitlines() == ["NAME  CIDRS"]


def test_list_of_resources_is_applied(cli: Cli) -> None:
    """`kubectl get -o json` prints such a list."""
    for number, kind in enumerate(("List", "IPPoolList")):
        pool = yaml.safe_load(POOL) | {"metadata": {"name": f"p{number}"}, "spec": {"cidr": f"10.{number}.0.0/24"}}
        document = json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": ""}, "items": [pool]})
        assert cli.changes("pool", "apply", "-f", "-", stdin=document) == f"p{number} created\n"


@pytest.mark.parametrize("deep", ["[" * 20_000, "{a: " * 20_000, "- " * 20_000], ids=["json", "flow", "block"])
def test_deeply_nested_documents_are_errors(cli: Cli, tmp_path: Path, deep: str) -> None:
    """This holds for manifests, network configurations and names profiles."""
    for group in ("pool", "reservation"):
        assert cli.fails(group, "apply", "-f", "-", stdin=deep).startswith("Error: <stdin> is ")
    (tmp_path / "deep").write_text(deep)
    assert cli.fails("--netconf", str(tmp_path / "deep"), "pool", "get").startswith("Error: ")
    (tmp_path / "deep").write_text(f"plugin = {'[' * 20_000}")
    assert cli.fails("--names", str(tmp_path / "deep"), "pool", "get").startswith("Error: names profile")


def test_each_error_has_its_own_line(cli: Cli) -> None:
    """A single error is part of the first line."""
    one = "document 1: kind = 'Pool' is not 'IPPool': set it to IPPool"
    document = POOL.replace("IPPool", "Pool")
    assert cli.fails("pool", "apply", "-f", "-", stdin=f"{document}---{POOL}") == f"Error: <stdin>: {one}\n"
    two = one.replace("1", "2")
    assert cli.fails("pool", "apply", "-f", "-", stdin=f"{document}---{document}") == (
        f"Error: <stdin>: 2 errors\n  {one}\n  {two}\n"
    )


def test_no_error_is_reported_twice(cli: Cli) -> None:
    spec = "{cidr: 10.77.0.0/33, nodeSelector: zone = 'a', ipipMode: Sometimes, blockSize: big, allowedUses: ['7']}"
    output = cli.fails("pool", "apply", "-f", "-", stdin=POOL.replace("{cidr: 10.77.0.0/24}", spec))
    for field in ("cidr", "nodeSelector", "ipipMode", "blockSize", "allowedUses"):
        assert output.count(f"spec.{field}") == 1
    assert len(output.splitlines()) == 6


def test_settings_for_other_components_cause_warnings(cli: Cli) -> None:
    """svcctl stores these settings."""
    first = POOL.replace("/24", "/24, natOutgoing: true, ipipMode: CrossSubnet")
    second = POOL.replace("pool4", "pool6").replace("10.77.0.0/24", "'fd77::/112', vxlanMode: Always")
    done = cli("pool", "apply", "-f", "-", stdin=f"{first}---{second}")
    assert done.exit_code == 0
    assert [line.split(" is stored")[0] for line in done.stderr.splitlines()] == [
        "warning: IP pool 'pool4': ipipMode = 'CrossSubnet'",
        "warning: IP pool 'pool4': natOutgoing = true",
        "warning: IP pool 'pool6': vxlanMode = 'Always'",
    ]
    assert cli("pool", "apply", "-f", "-", stdin=POOL).stderr == ""


def test_labels_of_a_node_can_be_removed(cli: Cli) -> None:
    """Without an option, a node keeps its labels."""
    cli.changes("node", "apply", "n1", "--label", "rack=a")
    assert cli.changes("node", "apply", "n1") == "n1 unchanged\n"
    assert cli.changes("node", "apply", "n1", "--no-labels") == "n1 updated\n"
    assert cli.prints("node", "get", "n1").split() == ["NAME", "LABELS", "n1"]
    assert "exclude each other" in cli.fails("node", "apply", "n1", "--no-labels", "--label", "a=b", code=2)


@pytest.mark.parametrize("key", ["a b", "-a", "a-", "a/b/c", "/a", "a/", "A.example/a", "x" * 64, "ä", "a\nb"])
def test_invalid_label_keys_are_refused(cli: Cli, key: str) -> None:
    """A node in Kubernetes cannot have such labels."""
    output = cli.fails("node", "apply", "n1", "--label", "good.example/a_b=1", "--label", f"{key}=1")
    assert "metadata.labels key = '" in output
    assert "is not a label key: give [DOMAIN/]NAME, NAME of up to 63 letters, digits" in output
    assert cli.prints("node", "get").split() == ["NAME", "LABELS"]


@pytest.mark.parametrize("value", ["ü b", "a b", "x" * 64, "a\nb", "a\n", "-a", "a.", "x=y", "a/b"])
def test_invalid_label_values_are_refused(cli: Cli, value: str) -> None:
    """The rule is that of Kubernetes, which allows an empty value."""
    output = cli.fails("node", "apply", "n1", "--label", f"rack={value}", "--label", "empty=")
    assert "metadata.labels.rack = " in output
    assert "is not a label value: give up to 63 letters, digits" in output
    assert cli.prints("node", "get").split() == ["NAME", "LABELS"]
    cli.changes("node", "apply", "n1", "--label", f"rack={'x' * 63}", "--label", "empty=")


def test_label_key_given_twice_is_refused(cli: Cli) -> None:
    """svcctl cannot know which of the values is meant."""
    output = cli.fails("node", "apply", "n1", "--label", "a=1", "--label", "b=1", "--label", "a=2", code=2)
    assert "--label: key 'a' is given more than once: keep one of them" in output
    assert cli.prints("node", "get").split() == ["NAME", "LABELS"]


@pytest.mark.parametrize("reason", ["", " ", "\t\n"])
def test_dropping_a_release_needs_a_reason(cli: Cli, reason: str) -> None:
    """White space is not a reason."""
    output = cli.fails("pending", "drop", "net", "c1", "eth0", "--reason", reason, code=2)
    assert "is empty: say why the release is not needed" in output


def test_nodes_of_the_embedded_store_are_listed(cli: Cli, tmp_path: Path) -> None:
    """Their names come from the network configuration and from blocks. A registered node has labels."""
    netconf = {"cniVersion": "1.0.0", "name": "net", "type": "svc", "nodename": "here", "datastore_type": "embedded"}
    (tmp_path / "net.json").write_text(json.dumps(netconf | {"ipam": {"type": "svc-ipam"}}))
    with closing(EmbeddedStore(tmp_path / "state" / "store.db")) as store:
        put_pool(store, "p", "10.9.0.0/24")
        IpamService(store, "other").assign(Assign("h", {}))
    options = ("--netconf", str(tmp_path / "net.json"))
    assert cli.prints(*options, "node", "get").split() == ["NAME", "LABELS", "here", "other"]
    assert cli.prints(*options, "node", "get", "here").split() == ["NAME", "LABELS", "here"]
    cli.changes(*options, "node", "apply", "other", "--label", "a=b")
    assert cli.prints("node", "get").split() == ["NAME", "LABELS", "other", "a=b"]
    assert "'third' does not exist" in cli.fails(*options, "node", "get", "third")


def test_role_is_bound_to_a_service_account(cli: Cli) -> None:
    """The binding refers to the role by its name."""
    role = yaml.safe_load(cli.prints("crd", "role"))
    binding = yaml.safe_load(cli.prints("crd", "binding", "--service-account", "svc", "--namespace", "net"))
    assert binding["kind"] == "ClusterRoleBinding"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "svc", "namespace": "net"}]


@pytest.mark.parametrize(
    ("account", "namespace", "kind"),
    [
        ("A b", "net", "service account"),
        ("a..b", "net", "service account"),
        ("a" * 254, "net", "service account"),
        ("svc", "x y", "namespace"),
        ("svc", "a.b", "namespace"),
        ("svc", "a" * 64, "namespace"),
        ("svc", "", "namespace"),
    ],
)
def test_role_is_not_bound_to_invalid_names(cli: Cli, account: str, namespace: str, kind: str) -> None:
    """The API server would refuse the manifest."""
    output = cli.fails("crd", "binding", "--service-account", account, "--namespace", namespace, code=2)
    assert f"is not the name of a {kind}: give up to " in output
    cli.prints("crd", "binding", "--service-account", "a.b-c", "--namespace", "x-y")
