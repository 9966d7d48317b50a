"""Section 7: the report of a failed call."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.pod import Pod
from harness.spec_rows import TESTS, statement

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]
ERRORS = TESTS.parent / "docs" / "reference" / "errors.md"


@statement(
    "7",
    "7.3",
    "Messages of every level go to standard error and to the log file.",
    "Both get the same lines. Each has its time, its level and the request's id, which an error contains too.",
)
def test_every_level_goes_to_standard_error_and_the_log_file(make: MakePod, tmp_path: Path) -> None:
    log = tmp_path / "cni.log"
    pod = make(log_file_path=str(log), log_level="DEBUG")
    lines = pod.call("DEL", netns="/run/netns/nowhere").stderr
    lines += pod.failed("ADD", hostname="old", ipam={**pod.config["ipam"], "ipv4_pools": ["nowhere"]}).stderr
    assert log.read_text() == lines
    assert set(re.findall(r"^\S+ \S+ (\w+) \[[0-9a-f]{8}\] ", lines, re.MULTILINE)) == {"ERROR", "WARNING", "INFO", "DEBUG"}


@statement(
    "7",
    "7.4",
    "The specification does not define codes and texts of errors.",
    "Below 100 they are those of the CNI specification, from 100 on those of svc: [all errors](errors.md). An error names"
    " the field, the value and the fix.",
    choice="Each kind of failure has its own code, which is the same on every datastore.",
)
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"mtu": 1}, 7, ""),
        ({"ipam": {"type": "svc-ipam", "ipv4_pools": ["nowhere"]}}, 102, "(NAME) does not exist"),
        ({"etcd_endpoints": "http://a:1", "etcd_discovery_srv": "a.example"}, 7, "excludes etcd_endpoints"),
    ],
    ids=["field", "pool", "etcd"],
)
def test_error_has_its_documented_code(make: MakePod, change: dict[str, object], code: int, words: str) -> None:
    """The error reference contains its code and text."""
    error = make().failed("ADD", **change).output
    (row,) = (line for line in ERRORS.read_text().splitlines() if line.startswith(f"| {code} | "))
    assert error["code"] == code
    assert words in row
    assert words.replace("NAME", "nowhere") in error["msg"]
