"""svcctl get, apply, create, replace, delete, label and convert: arguments, forms of output, and questions."""

import json
import os
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from harness.documents import ENDPOINT, EVERY, RESERVATION, SETTINGS, document, pool, references, shown, text
from harness.ipam import put, put_pool
from harness.svcctl import Cli
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
from svc.names import DEFAULT
from svc.netconf import networklist

MAIN = "from svc.ctl.main import main; main(prog_name='svcctl')"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def filled(cli: Cli) -> Cli:
    cli.changes("apply", "-f", "-", stdin=text(*EVERY))
    return cli


@pytest.mark.parametrize("word", ["pool", "pools", "ippool", "ippools", "IPPool", "ipp"])
def test_kinds_have_several_names(filled: Cli, word: str) -> None:
    assert filled.prints("get", word, "-o", "name") == "ippool/pods\n"
    assert filled.prints("get", f"{word}/pods", "-o", "name") == "ippool/pods\n"


def test_tables_of_several_kinds_have_a_line_between_them(filled: Cli) -> None:
    assert filled.prints("get", "pools,reservations,pools").splitlines() == [
        "NAME  CIDR          BLOCKS  NAT  IPIP   VXLAN  DISABLED  NODES",
        "pods  10.65.0.0/24  /26     no   Never  Never  no        all()",
        "",
        "NAME      CIDRS",
        "gateways  10.65.0.0/30",
    ]


def test_wide_tables_have_more_columns(filled: Cli) -> None:
    (heading, line) = filled.prints("get", "hep", "-o", "wide").splitlines()
    assert heading.split()[-3:] == ["PROFILES", "CREATED", "LABELS"]
    assert line.split()[-1] == "rack=a"
    assert "LABELS" not in filled.prints("get", "settings", "-o", "wide")


def test_output_of_programs_has_a_form(filled: Cli) -> None:
    """JSON is one array, and YAML a document for each object. The option may also precede the command."""
    found = json.loads(filled.prints("get", "pools,hep", "-o", "json"))
    assert list(yaml.safe_load_all(filled.prints("get", "pools,hep", "-o", "yaml"))) == found
    assert json.loads(filled.prints("-o", "json", "get", "pools,hep")) == found
    assert filled.prints("get", "wep", "-o", "name") == ""


def test_result_of_a_change_has_a_form_too(cli: Cli) -> None:
    """The line about the datastore is on standard error then."""
    done = cli("apply", "-f", "-", "-o", "json", stdin=text(ENDPOINT))
    assert json.loads(done.stdout) == [
        {
            "kind": "HostEndpoint",
            "name": "node1-eth0",
            "outcome": "created",
            "changes": [
                {"field": "metadata.labels.rack", "after": "a"},
                {"field": "spec.interfaceName", "after": "eth0"},
                {"field": "spec.node", "after": "node1"},
            ],
        }
    ]
    assert done.stderr.startswith("datastore: ")
    assert cli("apply", "-f", "-", "-o", "name", stdin=text(ENDPOINT)).stdout == "hostendpoint/node1-eth0\n"
    other = ENDPOINT | {"spec": {"node": "x", "interfaceName": "eth0"}}
    changed = yaml.safe_load(cli.prints("apply", "-f", "-", "-o", "yaml", "--dry-run", stdin=text(other)))
    assert changed["changes"] == [{"field": "spec.node", "before": "node1", "after": "x"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("get", "zebra"), "kind 'zebra' is not known: give one of ippools|pool|pools|ipp, "),
        (("get", "pool", "missing", "gone"), "IP pools 'missing', 'gone' do not exist: known: pods"),
        (("get", "ippool/pods", "hep/missing"), "host endpoint 'missing' does not exist"),
    ],
)
def test_unknown_kinds_and_names_are_errors(filled: Cli, arguments: tuple[str, ...], message: str) -> None:
    assert message in filled.fails(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("get",), "Missing argument"),
        (("get", "pools,hep", "x"), "several kinds and names exclude each other"),
        (("get", "ippool/pods", "x"), "'x' is not of the form KIND/NAME"),
        (("get", "wep", "-n", "x", "-A"), "-n and -A exclude each other"),
        (("get", "pools", "-n", "x"), "objects of kind IPPool have no namespace"),
        (("get", "pools", "-l", "a>b"), "selector part 'a>b' is not known"),
        (("apply",), "Missing option '-f'"),
        (("delete",), "choose objects in one way"),
        (("delete", "pools"), "choose objects in one way"),
        (("delete", "pool", "pods", "--all"), "choose objects in one way"),
        (("delete", "pools", "-l", "a=b", "--all"), "choose objects in one way"),
        (("delete", "pool", "pods", "-f", "x"), "choose objects in one way"),
        (("label", "pool", "pods"), "KEY=VALUE sets one, KEY- removes it"),
        (("label", "pool", "a=b"), "choose objects in one way"),
        (("label", "pool", "pods", "=b"), "'=b' has no key"),
        (("label", "pool", "pods", "a=b", "a-"), "'a-' gives label 'a' a second time"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_an_error(filled: Cli, arguments: tuple[str, ...], message: str) -> None:
    """The exit status is 2, and nothing is changed."""
    assert message in filled.fails(*arguments, code=2)
    assert len(references(filled)) == 4


@pytest.mark.parametrize("name", ["BAD NS", "Shop", "-a", "a" * 64, "a.b"])
def test_namespace_that_cannot_exist_is_refused(filled: Cli, name: str) -> None:
    error = filled.fails("get", "wep", "-n", name, code=2)
    assert f"{name!r} is not the name of a namespace: give up to 63 lower-case letters" in error


def test_state_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.touch()
    cli = Cli(tmp_path, fresh=False)
    for words in ("get pools", "apply -f -", "apply -f - --dry-run", "pending get", "ipam check --node", "store restore x"):
        error = cli.fails(*words.split(), stdin=text(pool("p", "10.65.0.0/24")))
        assert f"state directory {str(file)!r} is not a directory: name" in error
    assert f"journal '{file}/journal.db' cannot exist: {str(file)!r} is not a directory" in cli("status", "-o", "json").stdout


def test_repeated_objects_are_errors(cli: Cli) -> None:
    lines = cli.fails("apply", "-f", "-", stdin=text(RESERVATION, RESERVATION)).splitlines()
    assert lines[1:] == [
        "  <stdin>: document 1: IP reservation 'gateways': given 2 times: keep one of them",
        "  <stdin>: document 2: IP reservation 'gateways': given 2 times: keep one of them",
    ]


def test_pools_of_one_call_are_checked_together(cli: Cli) -> None:
    refused = cli.fails("apply", "-f", "-", stdin=text(pool("a"), pool("b", "10.65.0.128/25"), RESERVATION))
    assert "IP pool 'b': spec.cidr = '10.65.0.128/25' overlaps IP pool 'a'" in refused
    assert references(cli) == []


def test_settings_and_other_objects_have_one_name(cli: Cli) -> None:
    other = document("IPAMConfiguration", "other", SETTINGS["spec"])
    assert "metadata.name = 'other' is not 'default': there is only one" in cli.fails("apply", "-f", "-", stdin=text(other))
    cli.changes("apply", "-f", "-", stdin=text(SETTINGS))
    assert cli.changes("delete", "settings", "default") == "ipamconfiguration/default deleted\n"
    assert "strictAffinity                false" in cli.prints("ipam", "show", "--show-configuration")


def test_failed_and_dry_runs_make_no_store(tmp_path: Path) -> None:
    """The embedded store is made by the first document that is applied."""
    cli = Cli(tmp_path, fresh=False)
    for options in ((), ("--dry-run",)):
        assert "does not exist" in cli.fails("apply", "-f", "-", *options, stdin=text(pool()))
    (tmp_path / "state").mkdir()
    assert "ippool/pods would be created" in cli.prints("apply", "-f", "-", "--dry-run", stdin=text(pool()))
    assert "spec.cidr" in cli.fails("apply", "-f", "-", stdin=text(pool(cidr="x")))
    assert "does not exist" in cli.fails("get", "pools")
    assert not (tmp_path / "state" / EMBEDDED_FILE).exists()
    assert cli.changes("apply", "-f", "-", stdin=text(pool())) == "ippool/pods created\n"


def test_settings_for_other_components_cause_warnings(cli: Cli) -> None:
    done = cli("apply", "-f", "-", stdin=text(pool(natOutgoing=True), RESERVATION))
    assert "warning: IP pool 'pods': natOutgoing = true is stored" in done.stderr


def test_unreadable_objects_are_listed_with_their_error(filled: Cli, tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "state" / EMBEDDED_FILE)
    put_pool(store, "broken", "nothing")
    store.close()
    heading, first, *_ = filled.prints("get", "pools").splitlines()
    assert heading.split()[-1] == "ERROR"
    assert "is not a CIDR" in first
    done = filled("get", "pools", "-o", "name")
    assert "warning: IP pool 'broken'" in done.stderr


def test_undecodable_objects_are_not_deleted_silently(filled: Cli) -> None:
    """The error says what is wrong with the document."""
    with closing(sqlite3.connect(filled.folder / "state" / EMBEDDED_FILE)) as file, file:
        file.execute("UPDATE entries SET value = '[' WHERE path LIKE '%hostendpoints%'")
    error = filled.fails("delete", "hep", "node1-eth0")
    assert "hostendpoints/node1-eth0: it is not JSON" in error
    assert "etcdctl" in error
    assert "no object is selected" in filled("delete", "hep", "--all").stderr


@pytest.mark.parametrize("words", ["apply -f -", "convert -f - --to calico"])
def test_closed_standard_input_is_an_error(cli: Cli, words: str) -> None:
    script = f'exec "{sys.executable}" -c "{MAIN}" --state-dir {cli.folder}/state --embedded {words} <&-'
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: standard input is closed: give a file in place of -\n")


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1)])
def test_deletion_asks_on_a_terminal(filled: Cli, answer: str, status: int) -> None:
    """The question names the objects."""
    controller, terminal = os.openpty()
    command = [sys.executable, "-c", MAIN, "--state-dir", str(filled.folder / "state"), "--embedded", "delete", "hep", "--all"]
    with os.fdopen(controller, "w") as keyboard, os.fdopen(terminal) as stdin:
        keyboard.write(f"{answer}\n")
        keyboard.flush()
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert "Delete hostendpoint/node1-eth0? [y/N]" in done.stdout
    assert done.returncode == status, done.stderr
    assert (shown(filled, "hep") == []) is (answer == "y")
    assert ("nothing was deleted" in done.stderr) is (answer == "n")


def test_example_that_changes_a_pool_works(filled: Cli) -> None:
    """The third example of `svcctl apply --help` edits the output of `get`."""
    line = next(line for line in filled.prints("apply", "--help").splitlines() if "| sed" in line)
    edit = shlex.split(line.split("|")[1])
    edited = subprocess.run(
        edit, input=filled.prints("get", "pool", "pods", "-o", "yaml"), capture_output=True, text=True, check=True
    )
    assert filled.changes("apply", "-f", "-", stdin=edited.stdout) == "ippool/pods updated\n"


def test_label_of_no_object_is_said(filled: Cli) -> None:
    done = filled("label", "hep", "-l", "rack=none", "a=b")
    assert (done.exit_code, done.stderr) == (0, "no object is selected\n")


def test_documents_are_counted_as_the_file_has_them(filled: Cli) -> None:
    """Empty ones have a number too."""
    assert "document 3: kind" in filled.fails("apply", "-f", "-", stdin="---\n---\n---\nkind: Nonsense\n")


def test_endpoint_of_another_namespace_is_found(filled: Cli, tmp_path: Path) -> None:
    with closing(EmbeddedStore(tmp_path / "state" / EMBEDDED_FILE)) as store:
        workload = Workload("c1", "web-1", "shop")
        key = endpoint_key(DEFAULT, "node2", workload, "eth0")
        spec = {"ipNetworks": ["10.65.0.1/32"], "interfaceName": "svc1", "mac": "02:00:00:00:00:01"}
        put(store, key, endpoint(DEFAULT, key, "node2", workload, "eth0", spec=spec, facts=PodFacts()))
    name = "node2-k8s-web--1-eth0"
    assert "it exists in namespace shop: give -n shop, or -A" in filled.fails("get", "wep", name)
    for words in ((f"shop/{name}",), (name, "-n", "shop"), (name, "-A"), (f"shop/{name}", "-A")):
        assert filled.prints("get", "wep", *words, "-o", "name") == f"workloadendpoint/shop/{name}\n"
    assert filled.prints("get", f"wep/shop/{name}", "-o", "name") == f"workloadendpoint/shop/{name}\n"
    assert "is read only" in filled.fails("delete", "wep", f"shop/{name}")
    assert "is read only" in filled.fails("delete", "wep", "default/x")


@pytest.mark.parametrize("limited", ["-", "/dev/zero"])
def test_endless_file_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch, limited: str) -> None:
    monkeypatch.setattr(networklist, "MAX_FILE_BYTES", 1000)
    said = cli.fails("apply", "-f", limited, stdin="#" * 1001)
    assert "has more than 1000 bytes: give several files in its place" in said
