"""Completion of kinds and of the names of objects."""

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from harness.documents import EVERY, text
from harness.ipam import put
from harness.svcctl import Cli
from svc.ctl import completion
from svc.ctl.main import main
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.open import EMBEDDED_FILE
from svc.model.endpoint import PodFacts, Workload, endpoint, endpoint_key
from svc.names import DEFAULT


@pytest.fixture(autouse=True)
def logging_again() -> Iterator[None]:
    """Enable the log messages again: a process that completes disables them, and ends."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    Cli(tmp_path).changes("apply", "-f", "-", stdin=text(*EVERY))
    Cli(tmp_path, fresh=False).changes("node", "apply", "node1")
    workload = Workload("c1", "web-1", "shop")
    key = endpoint_key(DEFAULT, "node2", workload, "eth0")
    spec = {"ipNetworks": ["10.65.0.1/32"], "interfaceName": "svc1", "mac": "02:00:00:00:00:01"}
    with closing(EmbeddedStore(tmp_path / "state" / EMBEDDED_FILE)) as store:
        put(store, key, endpoint(DEFAULT, key, "node2", workload, "eth0", spec=spec, facts=PodFacts()))
    return tmp_path


def completed(folder: Path, *words: str) -> list[str]:
    """Return what a shell offers for the last word."""
    options = ["--state-dir", str(folder / "state"), "--run-dir", str(folder / "run")]
    *given, incomplete = words
    items = BashComplete(main, {}, "svcctl", "_SVCCTL_COMPLETE").get_completions([*options, *given], incomplete)
    return [item.value if item.type == "plain" else item.type for item in items]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("get", "ippo"), ["ippools"]),
        (("get", "hep"), ["hep"]),
        (("get", "pools,ipr"), ["pools,ipreservations"]),
        (("get", "pools", ""), ["pods"]),
        (("get", "pools", "x"), []),
        (("get", "pools", "pods", ""), []),
        (("get", "hep/"), ["hep/node1-eth0"]),
        (("get", "hep/node1-eth0", "ippo"), ["ippools/"]),
        (("delete", "ipr", "g"), ["gateways"]),
        (("label", "pools", "p"), ["pods"]),
        (("pool", "get", ""), ["pods"]),
        (("pool", "delete", "p"), ["pods"]),
        (("get", "nonsense", ""), []),
        (("ipam", "map", ""), ["pods"]),
        (("ipam", "map", "pods", "--node", ""), ["node1"]),
        (("ipam", "split", "2", "--pool", ""), ["pods"]),
        (("explain", "--node", ""), ["node1"]),
        (("get", "wep", "-n", ""), ["shop"]),
        (("convert", "--to", ""), ["calico", "default"]),
        (("convert", "--to", "./x"), ["file"]),
        (("--names", "c"), ["calico"]),
        (("install", "--names", "d"), ["default"]),
        (("man", "expl"), ["explain"]),
        (("man", "ipam", "sh"), ["show"]),
        (("apply", "-f", "x"), ["file"]),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_kinds_and_names_are_completed(filled: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(filled, *words) == offered


def test_datastore_that_does_not_answer_delays_the_shell_briefly(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "MAX_SECONDS", 0.05)
    monkeypatch.setattr("svc.admin.objects.read", lambda *_: time.sleep(0.5))
    begin = time.monotonic()
    assert completed(filled, "get", "pools", "") == []
    assert time.monotonic() - begin < 0.4


def test_missing_datastore_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert completed(tmp_path, "get", "pools", "") == []
    assert capfd.readouterr() == ("", "")
