"""The wait for policy: an ADD waits until the policy agent has written its file, or until the timeout."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.node import BIN, Node
from harness.pod import Pod
from harness.policy_pods import LONG, SHORT, begin, file_of, is_set_up, make
from harness.state import audit

pytestmark = pytest.mark.root

MakePod = Callable[..., Pod]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "endpoint-status"
    path.mkdir()
    return path


# the file


def test_add_accepts_an_existing_file(pods: MakePod, directory: Path) -> None:
    pod = make(pods, directory)
    file_of(pod, directory).touch()
    assert is_set_up(pod.call("ADD"))


def test_add_detects_a_file_that_is_created_during_the_call(pods: MakePod, directory: Path) -> None:
    pod = make(pods, directory)
    calling = begin(pod)
    (directory / "k8s name-space%2Fanother eth0").touch()
    assert not calling.is_over
    file_of(pod, directory).touch()
    assert is_set_up(calling.result())


def test_add_detects_a_file_that_is_renamed_to_its_name(pods: MakePod, directory: Path) -> None:
    """Writers use a rename so that readers see only complete files."""
    pod = make(pods, directory)
    calling = begin(pod)
    draft = directory / "draft"
    draft.write_text("{}")
    draft.rename(file_of(pod, directory))
    assert is_set_up(calling.result())


def test_repeated_add_detects_a_file_that_is_created_after_the_call(pods: MakePod, directory: Path) -> None:
    """The first ADD succeeds without the file, and logs the file's name. The repeated ADD finds the file."""
    pod = make(pods, directory, SHORT)
    called = pod.call("ADD")
    assert not is_set_up(called)
    assert "WARNING" in called.stderr
    assert f"{str(file_of(pod, directory))!r}: the file does not exist" in called.stderr
    file_of(pod, directory).touch()
    again = pod.call("ADD")
    assert is_set_up(again)
    assert again.stdout == called.stdout


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\xff\xfe", b"{", b"[]", b"null", b"7", b'{"ipv4Nets": 7}', b'{"ipv4Nets": ["nonsense", 7]}',
     b'{"ifaceName": "x"}', b"x" * 1_000_000],
    ids=["empty", "bytes", "half", "list", "null", "number", "no-list", "no-addresses", "other", "huge"],
)  # fmt: skip
def test_file_may_have_any_content(pods: MakePod, directory: Path, content: bytes) -> None:
    pod = make(pods, directory)
    file_of(pod, directory).write_bytes(content)
    assert is_set_up(pod.call("ADD"))


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_directory_or_pipe_counts_as_the_file(pods: MakePod, directory: Path, kind: str) -> None:
    pod = make(pods, directory)
    (os.mkdir if kind == "directory" else os.mkfifo)(file_of(pod, directory))
    assert is_set_up(pod.call("ADD"))


def test_file_of_an_earlier_sandbox_does_not_count(pods: MakePod, directory: Path) -> None:
    """The file names the address of that sandbox. When it is overwritten with the new address, it counts."""
    pod = make(pods, directory)
    path = file_of(pod, directory)
    path.write_text('{"ipv4Nets": ["192.0.2.77/32"]}')
    calling = begin(pod)
    (record,) = (record for record in audit(pod.node).records if record.id.container_id == pod.container)
    path.write_text(f'{{"ipv4Nets": ["{record.addresses[0]}/32"]}}')
    assert is_set_up(calling.result())


def test_log_mentions_a_file_of_an_earlier_sandbox(pods: MakePod, directory: Path) -> None:
    pod = make(pods, directory, SHORT)
    file_of(pod, directory).write_text('{"ipv6Nets": ["2001:db8::1/128"]}')
    called = pod.call("ADD")
    assert not is_set_up(called)
    assert "previous sandbox" in called.stderr


@pytest.mark.parametrize(
    ("ifname", "escaped"), [("a#b", "a%23b"), ("a$&+=@b", "a$&+=@b"), ("!*'(),;?", "%21%2A%27%28%29%2C%3B%3F"), ("é", "%C3%A9")]
)  # fmt: skip
def test_names_are_escaped(pods: MakePod, directory: Path, ifname: str, escaped: str) -> None:
    pod = make(pods, directory, name="web.0", ifname=ifname)
    (directory / f"k8s name-space%2Fweb.0 {escaped}").touch()
    assert is_set_up(pod.call("ADD"))


def test_name_that_is_too_long_for_a_file_is_logged(pods: MakePod, directory: Path) -> None:
    called = make(pods, directory, SHORT, name=253 * "a").call("ADD")
    assert not is_set_up(called)
    assert "File name too long" in called.stderr


# the directory


def test_add_detects_a_directory_that_is_created_during_the_call(pods: MakePod, directory: Path) -> None:
    directory.rmdir()
    pod = make(pods, directory / "a" / "b")
    calling = begin(pod)
    (directory / "a" / "b").mkdir(parents=True)
    file_of(pod, directory / "a" / "b").touch()
    assert is_set_up(calling.result())


def test_missing_directory_is_logged(pods: MakePod, directory: Path) -> None:
    called = make(pods, directory / "none", SHORT).call("ADD")
    assert not is_set_up(called)
    assert f"directory {str(directory / 'none')!r} does not exist" in called.stderr


def test_add_detects_a_directory_that_is_deleted_and_created_again(pods: MakePod, directory: Path) -> None:
    pod = make(pods, directory)
    calling = begin(pod)
    directory.rmdir()
    directory.mkdir()
    file_of(pod, directory).touch()
    assert is_set_up(calling.result())


@pytest.mark.parametrize("early", [True, False])
def test_add_detects_a_replaced_directory(pods: MakePod, directory: Path, tmp_path: Path, early: bool) -> None:
    """The new directory has the file at once, or gets it later."""
    pod = make(pods, directory)
    calling = begin(pod)
    new = tmp_path / "new"
    new.mkdir()
    if early:
        file_of(pod, new).touch()
    new.rename(directory)
    if not early:
        file_of(pod, directory).touch()
    assert is_set_up(calling.result())


def test_add_detects_a_replaced_parent_directory(pods: MakePod, tmp_path: Path) -> None:
    """The watch of the directory gets no event for this."""
    directory = tmp_path / "parent" / "status"
    directory.mkdir(parents=True)
    pod = make(pods, directory)
    calling = begin(pod)
    (tmp_path / "parent").rename(tmp_path / "old")
    directory.mkdir(parents=True)
    file_of(pod, directory).touch()
    assert is_set_up(calling.result())


def test_add_detects_a_directory_that_replaces_a_file(pods: MakePod, directory: Path) -> None:
    """A file has the name of the directory until the directory replaces it."""
    pod = make(pods, directory)
    directory.rmdir()
    directory.touch()
    calling = begin(pod)
    directory.unlink()
    directory.mkdir()
    file_of(pod, directory).touch()
    assert is_set_up(calling.result())


def test_add_waits_until_the_directory_is_readable(own_pods: MakePod, node: Node, directory: Path) -> None:
    """The agent runs as root without the capabilities that override file modes."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, of util-linux")
    node.stop_agent()
    node.start_agent("setpriv", "--bounding-set=-dac_override,-dac_read_search", str(BIN / "svc-agent"))
    os.chown(directory, 65534, 65534)
    directory.chmod(0o700)
    pod = make(own_pods, directory)
    file_of(pod, directory).touch()
    calling = begin(pod)
    directory.chmod(0o755)
    assert is_set_up(calling.result())
    directory.chmod(0o700)
    assert "Permission denied" in make(own_pods, directory, SHORT).call("ADD").stderr


def test_default_directory_is_below_the_run_directory(pods: MakePod) -> None:
    """The names profile determines the path."""
    pod = pods(args="K8S_POD_NAMESPACE=n;K8S_POD_NAME=p", policy_setup_timeout_seconds=SHORT)
    assert "'/var/run/svc/endpoint-status/k8s n%2Fp eth0'" in pod.call("ADD").stderr


# which calls wait


@pytest.mark.parametrize("args", ["", "K8S_POD_NAME=web-0", "K8S_POD_NAMESPACE=default"])
def test_only_kubernetes_pods_wait(pods: MakePod, directory: Path, args: str) -> None:
    pod = pods(args=f"IgnoreUnknown=1;{args}", policy_setup_timeout_seconds=LONG, endpoint_status_dir=str(directory))
    assert " policy=" not in pod.call("ADD").stderr


def test_timeout_of_zero_disables_the_wait(pods: MakePod, directory: Path) -> None:
    assert " policy=" not in make(pods, directory, 0).call("ADD").stderr


def test_ipam_plugin_does_not_wait_for_policy(pods: MakePod, directory: Path) -> None:
    assert make(pods, directory, plugin="svc-ipam").add()["ips"]


def test_each_interface_waits_for_its_own_file(pods: MakePod, directory: Path) -> None:
    pod = make(pods, directory)
    pod.ifname = "net1"
    file_of(pod, directory).touch()
    assert is_set_up(pod.call("ADD"))


@pytest.mark.parametrize("seconds", [-1, 2**31, 10**12])
def test_timeout_that_is_out_of_range_is_refused(pods: MakePod, directory: Path, seconds: int) -> None:
    output = make(pods, directory, seconds).failed("ADD").output
    assert f"policy_setup_timeout_seconds = {seconds} is out of range" in output["msg"]


def test_largest_timeout_is_accepted(pods: MakePod, directory: Path) -> None:
    pod = make(pods, directory, 2**31 - 1)
    calling = begin(pod)
    file_of(pod, directory).touch()
    assert is_set_up(calling.result())
