"""svcctl install in a pod: tokens of the plugin's account from a real API server, and their renewal."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.api_proxy import ApiProxy, Fate, Order
from harness.datastores import OrchSite, Site
from harness.kube import Kube
from harness.node import BIN
from harness.pod_installer import SHORT_LOOKS, SHORT_TIMES, PodInstaller, end, issue, memory, rights, user_of
from harness.polling import eventually, wait_until
from svc.admin.account_token import decode
from svc.deploy.manifests.settings import NETWORKING, NONE, ORCH, Settings

pytestmark = pytest.mark.server

SETTINGS = Settings(NETWORKING, ORCH, "svc:1", crds=NONE)
PLUGIN, NODE = (f"system:serviceaccount:kube-system:{name}" for name in ("svc-cni-plugin", "svc-node"))
TOKEN_PATH = "/api/v1/namespaces/kube-system/serviceaccounts/svc-cni-plugin/token"
ACCOUNT_PATH = "/api/v1/namespaces/kube-system/serviceaccounts"


@pytest.fixture(scope="module", autouse=True)
def _cluster(kube: Kube, orch_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    assert isinstance(orch_site, OrchSite)
    with rights(kube, SETTINGS, tmp_path_factory.mktemp("administrator")):
        yield
    orch_site.clear()


@pytest.fixture
def proxy(kube: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(kube) as made:
        yield made


@pytest.fixture(autouse=True)
def _empty_datastore(orch_site: Site) -> None:
    orch_site.clear()


@pytest.fixture
def pod(kube: Kube, tmp_path: Path) -> PodInstaller:
    return _installer(kube, tmp_path)


@pytest.fixture
def through(kube: Kube, proxy: ApiProxy, tmp_path: Path) -> PodInstaller:
    """Return a pod that reaches the API server through the proxy."""
    return _installer(kube, tmp_path, proxy)


def _installer(kube: Kube, folder: Path, proxy: ApiProxy | None = None) -> PodInstaller:
    made = PodInstaller(kube, SETTINGS, folder, proxy)
    made.bin_dir.mkdir()
    for name in ("portmap", "bandwidth"):
        plugin = made.bin_dir / name
        plugin.write_text('#!/bin/sh\necho \'{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}\'\n')
        plugin.chmod(0o755)
    return made


def test_token_is_that_of_the_plugins_account_for_a_day(pod: PodInstaller) -> None:
    pod.run()
    token = pod.token
    assert (token.subject, token.validity) == (PLUGIN, 86_400.0)
    assert user_of(pod.kube, token.text) == PLUGIN
    for path in (pod.token_file, pod.kubeconfig):
        assert path.stat().st_mode & 0o7777 == 0o600
    assert (pod.account.folder / "token").read_text() not in pod.token_file.read_text() + pod.kubeconfig.read_text()
    await_next_second(pod)
    before = pod.token_file.read_text()
    pod.run()
    assert pod.token_file.read_text() != before


def await_next_second(pod: PodInstaller) -> None:
    """Wait until the API server would issue another token: those of one second are equal."""
    wait_until(lambda: time.time() >= pod.token.issued + 1)


def test_token_of_a_folder_made_by_hand_is_used_as_it_is(pod: PodInstaller) -> None:
    """The folder has no file `namespace`, so nothing is requested."""
    pod.account.write(namespace="")
    (pod.account.folder / "namespace").unlink()
    pod.run()
    assert pod.token_file.read_text() == (pod.account.folder / "token").read_text()
    assert pod.token.subject == NODE


def test_another_account_is_refused(pod: PodInstaller) -> None:
    """The error names the missing right and its remedy, and nothing is written."""
    present = sorted(pod.bin_dir.iterdir())
    pod.netconf.write_text(pod.netconf.read_text().replace('"svc', '"calico').replace('"orch"', '"kubernetes"'))
    pod.kube.provoked.add(f"svc-node: create {TOKEN_PATH.replace('svc-cni', 'calico-cni')}")
    refused = pod.run("--names", "calico", check=False)
    assert refused.returncode == 1
    assert 'cannot create resource "serviceaccounts/token"' in refused.stderr
    assert f'User "{NODE}"' in refused.stderr
    assert "grant it: `svcctl manifests` prints the Role calico-install" in refused.stderr
    assert sorted(pod.bin_dir.iterdir()) == present
    assert not pod.conf_dir.exists()


def test_missing_account_is_named(pod: PodInstaller) -> None:
    pod.kube.uproot("serviceaccounts/kube-system/svc-cni-plugin")
    try:
        refused = pod.run(check=False)
    finally:
        _make_account(pod.kube)
    assert refused.returncode == 1
    assert "the account does not exist: make it: `svcctl manifests` prints the ServiceAccount svc-cni-plugin" in refused.stderr
    assert not pod.conf_dir.exists()


def _make_account(kube: Kube) -> None:
    kube.call("POST", ACCOUNT_PATH, {"metadata": {"name": "svc-cni-plugin", "namespace": "kube-system"}})


def test_pods_own_token_serves_if_the_server_issues_none(through: PodInstaller, proxy: ApiProxy) -> None:
    proxy.arm(
        Order(Fate.ANSWERED, f"POST {TOKEN_PATH}", times=100, status=404, body=b'{"kind": "Status", "reason": "NotFound"}')
    )
    proxy.arm(Order(Fate.ANSWERED, "GET /api/v1$", times=100, status=200, body=b'{"resources": [{"name": "pods"}]}'))
    through.run()
    assert through.token.subject == NODE
    with through.watching(SHORT_LOOKS) as process:
        through.await_watch(process)
        through.mount_token()
        wait_until(lambda: through.token_file.read_text() == (through.account.folder / "token").read_text())
        assert through.errors() == []
        assert end(process) == 0


def test_token_is_renewed_again_and_again(pod: PodInstaller) -> None:
    with pod.watching() as process:
        pod.await_watch(process)
        found = {pod.token_file.read_text()}
        for _ in range(3):
            found.add(eventually(pod.token_file.read_text, lambda text: text not in found))
        assert {user_of(pod.kube, text) for text in found} == {PLUGIN}
        assert pod.errors() == []
        assert end(process) == 0
    assert "svc-token renewed\n" in pod.out.read_text()


def test_watch_with_usual_times_renews_nothing_and_takes_little_memory(pod: PodInstaller) -> None:
    """It has just installed a token for a day. A third more than the container requests leaves room for other libraries."""
    with pod.watching({"svc.admin.installation_watch:LOOK_SECONDS": 0.1}) as process:
        pod.await_watch(process)
        wait_until(lambda: "cluster information" in pod.out.read_text())
        installed = pod.token_file.read_text()
        time.sleep(1.0)
        assert pod.token_file.read_text() == installed
        found = memory(process)
        assert end(process) == 0
    print(f"resident memory of svcctl install --watch: {found:.1f} MiB")
    assert found < pod.requested_memory * 4 / 3


def test_account_that_is_made_again_gets_a_token(pod: PodInstaller) -> None:
    """The API server refuses the token of the deleted account. This shows within the time of a trial."""
    with pod.watching(SHORT_LOOKS) as process:
        pod.await_watch(process)
        before = pod.token_file.read_text()
        pod.kube.uproot("serviceaccounts/kube-system/svc-cni-plugin")
        eventually(pod.errors, lambda lines: any("the account does not exist" in line for line in lines))
        _make_account(pod.kube)
        wait_until(lambda: pod.token_file.read_text() != before and user_of(pod.kube, pod.token_file.read_text()) == PLUGIN)
        wait_until(lambda: "the token is renewed again\n" in pod.out.read_text())
        assert len(pod.errors()) == len(set(pod.errors()))
        assert end(process) == 0


def test_server_that_is_away_for_a_while(through: PodInstaller, proxy: ApiProxy) -> None:
    """The failure is reported once. The token stays, and is renewed when the server is back."""
    with through.watching() as process:
        through.await_watch(process)
        proxy.arm(order := Order(Fate.NEVER_SENT, ".", times=100_000))
        eventually(through.errors, lambda lines: any("not renewed" in line for line in lines))
        during = through.token_file.read_text()
        time.sleep(3.0)
        assert through.token_file.read_text() == during
        assert len([line for line in through.errors() if line.startswith("not renewed")]) <= 2  # with and without an answer
        order.times = 0
        wait_until(lambda: through.token_file.read_text() != during)
        wait_until(lambda: "the token is renewed again\n" in through.out.read_text())
        assert end(process) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "answer", [Order(Fate.NEVER_SENT, ".", 10**9), Order(Fate.ANSWERED, ".", 10**9, status=429)], ids=["gone", "busy"]
)
def test_five_minutes_without_the_server(through: PodInstaller, proxy: ApiProxy, answer: Order) -> None:
    """The watch goes on, needs no more memory, reports the failure a few times, and renews the token afterwards."""
    with through.watching() as process:
        through.await_watch(process)
        proxy.arm(answer)
        eventually(through.errors, lambda lines: any("not renewed" in line for line in lines))
        during, before = through.token_file.read_text(), memory(process)
        time.sleep(300.0)
        assert through.token_file.read_text() == during
        assert memory(process) < before + 4.0
        assert len(through.errors()) <= 10
        answer.times = 0
        wait_until(lambda: through.token_file.read_text() != during)
        assert end(process) == 0


def test_installed_token_is_kept_while_the_server_is_away(through: PodInstaller, proxy: ApiProxy) -> None:
    """A node must not lose its agent because its init container waits for the API server."""
    through.run()
    before = through.token_file.read_text()
    proxy.arm(order := Order(Fate.NEVER_SENT, "/token", times=100_000))
    done = through.run()
    assert "warning: the token that is there is kept" in done.stderr
    assert through.token_file.read_text() == before
    through.token_file.unlink()
    failed = through.run(check=False)
    order.times = 0
    assert (failed.returncode, "does not answer" in failed.stderr) == (1, True)


def test_busy_server_is_asked_again_after_its_pause(through: PodInstaller, proxy: ApiProxy) -> None:
    proxy.arm(Order(Fate.ANSWERED, f"POST {TOKEN_PATH}", times=2, status=429, headers={"Retry-After": "1"}))
    began = time.monotonic()
    through.run()
    assert time.monotonic() - began > 2.0
    assert through.token.subject == PLUGIN


def test_busy_server_that_stays_busy_is_reported(through: PodInstaller, proxy: ApiProxy) -> None:
    with through.watching() as process:
        through.await_watch(process)
        proxy.arm(order := Order(Fate.ANSWERED, f"POST {TOKEN_PATH}", times=1000, status=429, headers={"Retry-After": "60"}))
        eventually(through.errors, lambda lines: any("429" in line for line in lines))
        order.times = 0
        wait_until(lambda: "the token is renewed again\n" in through.out.read_text())
        assert end(process) == 0


def test_lost_reply_and_empty_token_do_no_harm(through: PodInstaller, proxy: ApiProxy) -> None:
    with through.watching() as process:
        through.await_watch(process)
        proxy.arm(Order(Fate.REPLY_LOST, f"POST {TOKEN_PATH}"))
        proxy.arm(Order(Fate.ANSWERED, f"POST {TOKEN_PATH}", status=201, body=b'{"status": {"token": ""}}'))
        eventually(through.errors, lambda lines: any("the answer has no token" in line for line in lines))
        assert through.token.subject == PLUGIN
        wait_until(lambda: "the token is renewed again\n" in through.out.read_text())
        assert end(process) == 0


@pytest.mark.parametrize("name", ["svc-token", "svc-kubeconfig"])
def test_removed_file_is_put_back_at_once(pod: PodInstaller, name: str) -> None:
    with pod.watching(SHORT_LOOKS) as process:
        pod.await_watch(process)
        await_next_second(pod)
        before = pod.token_file.read_text()
        (pod.conf_dir / name).unlink()
        wait_until((pod.conf_dir / name).exists)
        if name == "svc-token":
            wait_until(lambda: pod.token_file.read_text() not in ("", before))
        assert user_of(pod.kube, pod.token_file.read_text()) == PLUGIN
        assert end(process) == 0
    assert yaml.safe_load(pod.kubeconfig.read_text())["users"] == [{"name": "svc", "user": {"tokenFile": "svc-token"}}]


def test_missing_token_of_the_pod_is_reported(pod: PodInstaller) -> None:
    with pod.watching() as process:
        pod.await_watch(process)
        pod.account.write(token="")
        # the version may be noted at this time, which fails in the same way
        eventually(
            pod.errors, lambda lines: any(line.startswith("not renewed") and "token' cannot be read" in line for line in lines)
        )
        pod.mount_token()
        wait_until(lambda: "the token is renewed again\n" in pod.out.read_text())
        assert end(process) == 0


@pytest.mark.root
def test_read_only_directory_is_reported(pod: PodInstaller) -> None:
    """Nothing is lost, and the token is renewed when the directory can be written again."""
    pod.conf_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", pod.conf_dir], check=True)
    try:
        with pod.watching() as process:
            pod.await_watch(process)
            subprocess.run(["mount", "-o", "remount,ro", pod.conf_dir], check=True)
            lines = eventually(
                pod.errors, lambda lines: any("svc-token cannot be written: Read-only file system" in line for line in lines)
            )
            during = pod.token_file.read_text()
            time.sleep(2.0)
            assert pod.token_file.read_text() == during
            assert len(pod.errors()) == len(lines)
            subprocess.run(["mount", "-o", "remount,rw", pod.conf_dir], check=True)
            wait_until(lambda: pod.token_file.read_text() != during)
            assert end(process) == 0
    finally:
        subprocess.run(["umount", pod.conf_dir], check=True)


WRITES = {
    "request": "svc.admin.account_token:_requested",
    "draft": "svc.atomic_file:os.fsync",
    "rename": "svc.atomic_file:os.rename",
    "file": "svc.admin.token_keeper:write",
    "installer's file": "svc.admin.installer:_write",
    "record": "svc.admin.installation:add_installed",
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", WRITES.values(), ids=WRITES)
def test_next_process_completes_what_a_kill_has_interrupted(pod: PodInstaller, point: str, when: str) -> None:
    """Each installed file is whole at every moment: the old or the new one."""
    pod.run()
    old, kubeconfig = pod.token_file.read_text(), pod.kubeconfig.read_bytes()
    await_next_second(pod)
    with pod.watching(kill=(point, when)) as killed:
        assert killed.wait(60) == -signal.SIGKILL, pod.err.read_text()
    token = pod.token_file.read_text()
    assert token == old or user_of(pod.kube, token) == PLUGIN
    assert pod.kubeconfig.read_bytes() == kubeconfig
    pod.out.unlink()
    with pod.watching(SHORT_LOOKS) as process:
        pod.await_watch(process)
        assert user_of(pod.kube, pod.token_file.read_text()) == PLUGIN
        assert pod.token_file.read_text() != old
        assert end(process) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_command_while_a_server_does_not_answer(pod: PodInstaller, number: int) -> None:
    """The server accepts the connection, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pod.environment |= {"KUBERNETES_SERVICE_PORT": str(silent.getsockname()[1])}
        with pod.watching() as process:
            connection, _ = silent.accept()
            with connection:
                assert end(process, number) != 0
    assert not pod.conf_dir.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_watch(pod: PodInstaller, number: int) -> None:
    """Network list and executables stay: without them, a runtime would use the network list of another plugin."""
    with pod.watching({**SHORT_TIMES, "svc.admin.installation_watch:LOOK_SECONDS": 1.0}) as process:
        pod.await_watch(process)
        before = sorted([*pod.conf_dir.iterdir(), *pod.bin_dir.iterdir()])
        assert end(process, number) == 0
    assert sorted([*pod.conf_dir.iterdir(), *pod.bin_dir.iterdir()]) == before
    assert list(pod.conf_dir.glob("*.conflist"))
    assert "Traceback" not in pod.err.read_text()
    assert not list(pod.conf_dir.glob(".svc-*"))


@pytest.mark.root
def test_account_is_found_where_kubernetes_mounts_it(pod: PodInstaller) -> None:
    """The DaemonSet gives no option. The mount exists for this process only."""
    place = "/run/secrets/kubernetes.io/serviceaccount"
    script = (
        f'mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir -p {place} && mount --bind "$0" {place} && exec "$@"'
    )
    command = ["unshare", "--mount", "sh", "-c", script, str(pod.account.folder), str(BIN / "svcctl")]
    done = subprocess.run(
        [*command, *pod.arguments(0)], env=os.environ | pod.environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done
    assert pod.token.subject == PLUGIN


def test_another_token_than_the_plugins_is_not_requested(pod: PodInstaller) -> None:
    """The rights of the pod end with its own account and that of the plugin."""
    token = decode(issue(pod.kube, "svc-node"))
    assert token.subject == NODE
    pod.run()
    assert pod.token.subject == PLUGIN
