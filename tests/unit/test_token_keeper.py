"""The keeper of token and kubeconfig: when it renews, with real files, a clock of the test, and a source without a server."""

import os
import stat
import time
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.account_tokens import NAMESPACE, NODE, PLUGIN, MountedAccount, access_of, jwt
from svc.admin import token_keeper
from svc.admin.account_access import Access
from svc.admin.account_token import Token, decode, obtain, read_installed
from svc.admin.token_keeper import TokenKeeper
from svc.datastore.api import StoreError

DAY = 86_400.0


class Pod:
    """A pod that keeps the access of its node, and a server that issues tokens to it."""

    def __init__(self, folder: Path, *, by_hand: bool = False) -> None:
        self.now = 5000.0
        self.key = "k1"
        self.validity = DAY
        self.failure = ""
        self.issued: list[tuple[float, str]] = []  # time, token
        self.reports: list[tuple[str, bool]] = []
        self.account = MountedAccount(folder / "account")
        self.by_hand = by_hand
        self.conf_dir = folder / "net.d"
        self.conf_dir.mkdir()
        self.rotate()
        self.account.write(ca="authority", **({} if by_hand else {"namespace": NAMESPACE}))
        self.access = access_of(self.account.folder, self.conf_dir)
        self.start()

    def start(self) -> None:
        source = obtain if self.by_hand else self._issue
        self.keeper = TokenKeeper(
            self.access, lambda *report: self.reports.append(report), source=source, clock=lambda: self.now
        )

    def _issue(self, _: Access) -> Token:
        if self.failure:
            raise StoreError(self.failure, details="wait")
        text = jwt(PLUGIN, time.time(), self.validity, key=self.key, number=len(self.issued))
        self.issued.append((self.now, text))
        return decode(text)

    def rotate(self, key: str = "") -> str:
        """Give the pod another token of its own, as kubelet does."""
        self.key = key or self.key
        token = jwt(NODE, time.time(), 3607.0, key=self.key, number=id(object()))
        self.account.write(token=token)
        return token

    def pass_time(self, seconds: float, step: float = 1.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.keeper.look()
            self.now += step

    @property
    def token(self) -> str:
        return self.access.token_file.read_text()

    def expect(self, count: int) -> None:
        """Check that so many tokens were issued, and that the last one is installed, readable by root alone."""
        assert len(self.issued) == count
        assert self.token == self.issued[-1][1]
        for path in (self.access.token_file, self.access.kubeconfig):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    made = Pod(tmp_path)
    made.keeper.look()
    made.expect(1)
    return made


def test_token_is_renewed_after_a_quarter_of_its_validity(pod: Pod) -> None:
    pod.pass_time(4 * DAY, 60.0)
    times = [when for when, _ in pod.issued]
    pauses = [after - before for before, after in pairwise(times)]
    assert len(pauses) >= 15
    assert all(DAY * 3 / 16 - 60 <= pause <= DAY / 4 + 60 for pause in pauses), pauses
    assert len(set(pauses)) > 5
    assert {line for line, _ in pod.reports} == {f"{pod.access.token_file} renewed", f"{pod.access.kubeconfig} renewed"}


def test_server_that_grants_less_is_asked_earlier(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.validity = 600.0
    pod.pass_time(160.0)
    pod.expect(2)
    pod.validity = 8.0  # the floor is 5 s
    pod.pass_time(200.0)
    found = len(pod.issued)
    pod.pass_time(60.0)
    assert 10 <= len(pod.issued) - found <= 12


def test_new_token_of_the_pod_alone_is_no_reason(pod: Pod) -> None:
    """Kubernetes renews it every 48 minutes. A node less does not matter, but a thousand nodes do."""
    for _ in range(4):
        pod.rotate()
        pod.pass_time(600.0, 10.0)
    pod.expect(1)


def test_token_is_renewed_at_once_if_keys_change(pod: Pod) -> None:
    pod.rotate("k2")
    pod.pass_time(2.0)
    pod.expect(2)
    assert decode(pod.token).issuer == "https://tests k2"
    pod.pass_time(100.0)
    pod.expect(2)


def test_pod_with_a_token_of_the_older_key_does_not_renew_again_and_again(pod: Pod) -> None:
    """The API server signs with another key, and kubelet has not renewed the pod's token yet."""
    pod.rotate("k2")
    pod.pass_time(5.0)
    pod.key = "k3"
    os.unlink(pod.access.token_file)
    pod.pass_time(100.0)
    pod.expect(3)


def test_token_is_renewed_if_it_is_removed_during_a_look(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look that puts the file back has read it before."""

    def removed_after_it_was_read(access: Access) -> Token:
        found = read_installed(access)
        access.token_file.unlink(missing_ok=True)
        return found

    pod.pass_time(10.0)
    with monkeypatch.context() as patched:
        patched.setattr(token_keeper, "read_installed", removed_after_it_was_read)
        pod.access.kubeconfig.unlink()
        pod.keeper.look()
    pod.expect(1)
    pod.pass_time(2.0)
    pod.expect(2)


@pytest.mark.parametrize("name", ["svc-token", "svc-kubeconfig"])
@pytest.mark.parametrize("change", ["removed", "other", "empty", "mode", "link"])
def test_changed_file_is_put_right_at_once(pod: Pod, name: str, change: str) -> None:
    """Another token than the installed one is a request for a new one, which comes within seconds."""
    path = pod.conf_dir / name
    kubeconfig = pod.access.kubeconfig.read_bytes()
    if change == "removed":
        path.unlink()
    elif change == "mode":
        path.chmod(0o644)
    elif change == "link":
        path.rename(pod.conf_dir / "elsewhere")
        path.symlink_to("elsewhere")
    else:
        path.write_text("" if change == "empty" else "other")
    before = pod.token if name == "svc-kubeconfig" or change in ("mode", "link") else None
    pod.pass_time(1.0)
    assert pod.token == (before or pod.issued[0][1])
    assert pod.access.kubeconfig.read_bytes() == kubeconfig
    pod.pass_time(10.0)
    assert not path.is_symlink()
    pod.expect(1 if before else 2)
    pod.pass_time(100.0)
    pod.expect(1 if before else 2)


def test_later_token_of_another_installer_stays(pod: Pod) -> None:
    """Two installers of one node do not take turns. The later token is renewed in its time."""
    later = jwt(PLUGIN, time.time() + 60, DAY, number=99)
    pod.access.token_file.write_text(later)
    pod.pass_time(100.0)
    assert (pod.token, len(pod.issued)) == (later, 1)
    pod.pass_time(DAY / 4, 20.0)
    pod.expect(2)


@pytest.mark.parametrize("subject", [PLUGIN, NODE])
def test_earlier_token_and_one_of_another_account_do_not_stay(pod: Pod, subject: str) -> None:
    pod.access.token_file.write_text(jwt(subject, time.time() - 60, DAY if subject == PLUGIN else 9 * DAY))
    pod.pass_time(1.0)
    assert pod.token == pod.issued[0][1]
    pod.pass_time(10.0)
    pod.expect(2)


def test_next_process_goes_on_with_the_installed_token(pod: Pod) -> None:
    pod.start()
    pod.pass_time(100.0)
    pod.expect(1)


def test_next_process_renews_an_old_token(pod: Pod) -> None:
    pod.access.token_file.write_text(jwt(PLUGIN, time.time() - DAY / 2, DAY))
    pod.start()
    pod.pass_time(10.0)
    pod.expect(2)


def test_installed_token_of_another_account_is_replaced_at_once(pod: Pod) -> None:
    """Earlier versions have installed the pod's own token."""
    pod.access.token_file.write_text(jwt(NODE, time.time(), DAY))
    pod.start()
    pod.keeper.look()
    pod.expect(2)


def test_certificate_of_the_authority_follows_without_a_new_token(pod: Pod) -> None:
    before = pod.access.kubeconfig.read_bytes()
    pod.account.write(ca="another")
    pod.pass_time(1.0)
    assert pod.access.kubeconfig.read_bytes() != before
    assert (
        yaml.safe_load(pod.access.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
        == "YW5vdGhlcg=="
    )
    pod.expect(1)


def test_failures_are_reported_once_and_the_token_stays(pod: Pod) -> None:
    installed = pod.token
    pod.failure = "away"
    pod.reports.clear()
    pod.pass_time(DAY / 2, 10.0)
    assert pod.reports == [("not renewed: away: wait", True)]
    assert pod.token == installed
    pod.failure = ""
    pod.pass_time(600.0)
    pod.expect(2)
    assert pod.reports[1:] == [(f"{pod.access.token_file} renewed", False), ("the token is renewed again", False)]


@pytest.mark.parametrize("name", ["token", "ca"])
def test_missing_file_of_the_account_is_reported_until_it_is_there(pod: Pod, name: str) -> None:
    kept = (pod.account.folder / ("ca.crt" if name == "ca" else name)).read_text()
    pod.reports.clear()
    pod.account.write(**{name: ""})
    pod.pass_time(100.0)
    ((line, is_failure),) = pod.reports
    assert (is_failure, "cannot be read: No such file or directory" in line) == (True, True)
    pod.account.write(**{name: kept})
    pod.pass_time(1.0)
    assert pod.reports[1:] == [("the token is renewed again", False)]
    pod.expect(1)


def test_token_of_a_folder_made_by_hand_is_copied(tmp_path: Path) -> None:
    pod = Pod(tmp_path, by_hand=True)
    for _ in range(3):
        token = pod.rotate()
        pod.pass_time(1.0)
        assert pod.token == token
    pod.account.write(token="secret-2")
    pod.pass_time(1.0)
    assert pod.token == "secret-2"
    pod.access.token_file.unlink()
    pod.pass_time(1.0)
    assert pod.token == "secret-2"


def test_token_is_never_empty(tmp_path: Path) -> None:
    pod = Pod(tmp_path, by_hand=True)
    pod.pass_time(1.0)
    installed = pod.token
    pod.account.write(token=" ")
    pod.pass_time(20.0)
    assert pod.token == installed
    assert "it is empty" in pod.reports[-1][0]


EVENTS = ("wait", "wait long", "rotate", "new key", "remove", "damage", "lose", "fail", "work", "restart", "other installer")


@settings(max_examples=10, deadline=None)
@given(events=st.lists(st.sampled_from(EVENTS), max_size=15))
def test_any_order_of_events_ends_with_a_valid_token(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> None:
    """While the server works, the installed token is at most a quarter of its validity old."""
    pod = Pod(tmp_path_factory.mktemp("pod"))
    pod.keeper.look()
    for number, event in enumerate(events):
        _let_happen(pod, event, number)
        before = len(pod.issued)
        pod.pass_time(30.0)
        assert len(pod.issued) - before <= 6
    pod.failure = ""
    pod.pass_time(310.0, 5.0)
    assert decode(pod.token).subject == PLUGIN
    assert yaml.safe_load(pod.access.kubeconfig.read_text())["users"] == [{"name": "svc", "user": {"tokenFile": "svc-token"}}]
    pod.pass_time(DAY / 4, 60.0)
    assert pod.issued[-1][0] >= pod.now - DAY / 4 - 600
    pod.expect(len(pod.issued))


def _let_happen(pod: Pod, event: str, number: int) -> None:
    match event:
        case "wait long":
            pod.pass_time(DAY / 8, 60.0)
        case "rotate":
            pod.rotate()
        case "new key":
            pod.rotate(f"n{number}")
        case "remove":
            pod.access.token_file.unlink(missing_ok=True)
        case "damage":
            pod.access.kubeconfig.write_text("{}")
        case "lose":
            pod.access.token_file.write_text(jwt(PLUGIN, time.time() - 1000, DAY))
        case "fail" | "work":
            pod.failure = "away" if event == "fail" else ""
        case "restart":
            pod.start()
        case "other installer":
            pod.access.token_file.write_text(jwt(PLUGIN, time.time() + number, DAY, number=1000 + number))
