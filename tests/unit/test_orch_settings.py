"""Settings of the orch store: kubeconfigs, single fields, tokens, and their errors."""

import base64
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from harness.certificates import Authority, encrypt
from harness.skips import ONE_PROCESSOR
from svc.cpu_pinning import CPU_PINNING
from svc.datastore.api import Conflict, NotFound, StoreError
from svc.datastore.open import open_backend, open_client
from svc.datastore.orch import auth as auth_module
from svc.datastore.orch.auth import ApiAuth
from svc.datastore.orch.client import ApiError
from svc.datastore.orch.plain_access import needs_client
from svc.datastore.orch.resource_store import refusal
from svc.model.errors import CallerError
from svc.model.keys import HandleKey
from svc.names import DEFAULT

SECRET = "very-secret-token"

Json = dict[str, Any]


def document(**changes: Any) -> Json:
    cluster = {"server": "https://127.0.0.1:6443/", "certificate-authority": "ca.crt"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": SECRET}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    } | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with a CA certificate, and a client certificate with an encrypted key and the key of another one."""
    authority = Authority(tmp_path, "ours")
    authority.root.rename(tmp_path / "ca.crt")
    certificate, key = authority.issue("client")
    certificate.rename(tmp_path / "mine.crt")
    encrypt(key)
    key.rename(tmp_path / "locked.key")
    Authority(tmp_path, "other").issue("client")[1].rename(tmp_path / "mine.key")
    return tmp_path


def kubeconfig(folder: Path, content: Json | str) -> str:
    path = folder / "kubeconfig"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


NOT_ITS_KEY, EXEC = "client-key is of another certificate", "client.authentication.k8s.io/v1beta1"
ERRORS: list[tuple[Json | str, str]] = [
    ("", "is empty or no mapping"),
    ("[1]", "is empty or no mapping"),
    (f"users: [{SECRET}\nclusters: x: y", "is not YAML (line 2)"),
    (document(**{"current-context": ""}), "has no current-context"),
    (document(**{"current-context": "other"}), "has no entry 'other' in contexts"),
    (document(clusters=[]), "has no entry 'c' in clusters"),
    (document(clusters="c"), "has no entry 'c' in clusters"),
    (document(users=[{"name": "other", "user": {"token": SECRET}}]), "has no entry 'u' in users"),
    (document(clusters=[{"name": "c", "cluster": {}}]), "cluster 'c' has no server"),
    (
        document(clusters=[{"name": "c", "cluster": {"server": "https://h", "certificate-authority": "none"}}]),
        "File does not exist",
    ),
    (document(clusters=[{"name": "c", "cluster": {"server": "::x"}}]), "cluster 'c': server = '::x' is not a URL"),
    (document(clusters=[{"name": "c", "cluster": {"server": "https://h:port"}}]), "server = 'https://h:port' is not a URL"),
    (
        document(clusters=[{"name": "c", "cluster": {"server": "https://h", "certificate-authority": "kubeconfig"}}]),
        "certificate-authority holds no certificate",
    ),
    (document(users=[{"name": "u", "user": {"client-certificate": "mine.crt", "client-key": "mine.key"}}]), NOT_ITS_KEY),
    (document(users=[{"name": "u", "user": {"client-certificate-data": "eA==", "client-key-data": "eA=="}}]), "cannot be read"),
    (document(users=[{"name": "u", "user": {"client-certificate": "mine.crt", "client-key": "locked.key"}}]), "is encrypted"),
    (
        document(users=[{"name": "u", "user": {"exec": {"command": "/none", "apiVersion": EXEC}}}]),
        "'/none' gave no credentials",
    ),
    (document(users=[{"name": "u", "user": {"tokenFile": "none"}}]), "tokenFile = "),
    (document(users=[{"name": "u", "user": {"client-certificate-data": SECRET + "!"}}]), "an entry cannot be used"),
    (document(users=[{"user": {"token": SECRET}}, {"name": "u", "user": {}}]), "an entry is missing or of another type"),
]


@pytest.mark.parametrize(("content", "expected"), ERRORS, ids=[expected for _, expected in ERRORS])
def test_error_names_the_problem_of_a_kubeconfig(folder: Path, content: Json | str, expected: str) -> None:
    """It has the path and a fix, and quotes no secret."""
    path = kubeconfig(folder, content)
    with pytest.raises(CallerError) as refusal:
        ApiAuth({"kubeconfig": path})
    assert expected in refusal.value.msg
    assert path in refusal.value.msg
    assert refusal.value.details
    assert SECRET not in str(refusal.value)


def test_error_names_a_missing_kubeconfig(folder: Path) -> None:
    """It says why the file cannot be read, and what to do."""
    with pytest.raises(CallerError, match=r"kubeconfig '/none/kc' cannot be read: No such file") as refusal:
        ApiAuth({"kubeconfig": "/none/kc"})
    assert "name a file" in refusal.value.details


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "no kubeconfig is given"),
        ({"orch_api_root": "10.0.0.1:6443"}, "orch_api_root = '10.0.0.1:6443' is not a URL"),
        ({"orch_api_root": "ftp://10.0.0.1"}, "is not a URL"),
        ({"orch_api_root": "https://h", "k8s_client_key": "/none"}, "k8s_client_key = '/none' cannot be read"),
        ({"orch_api_root": "https://h", "k8s_certificate_authority": "/none"}, "k8s_certificate_authority = '/none'"),
    ],
)
def test_error_names_an_invalid_setting(settings: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has field, value and fix."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CallerError) as refusal:
        ApiAuth(settings)
    assert expected in refusal.value.msg
    assert refusal.value.details


def test_error_names_an_unknown_api_group(tmp_path: Path) -> None:
    """It lists the known groups."""
    settings = {"kind": "orch", "orch_api_root": "https://h", "api_group": "other/v1"}
    with pytest.raises(CallerError, match="api_group = 'other/v1' is not known") as refusal:
        open_backend(settings, tmp_path, DEFAULT)
    assert refusal.value.details == "give one of svc.internal/v3 and crd.svc.internal/v1"


@pytest.mark.parametrize(
    "root", ["http://h:8080", "http://h:8080/", "http://h:8080/api", "http://h:8080/api/", "http://h:8080/api/v1/"]
)
def test_api_path_is_removed_from_the_url(root: str) -> None:
    """Other parts of the path are kept, because a proxy may require them."""
    with closing(ApiAuth({"orch_api_root": root})) as auth:
        assert auth.current().root == "http://h:8080"
        assert auth.current().authorization() == ""
    with closing(ApiAuth({"orch_api_root": "http://h/k8s/c-1/api/v1"})) as auth:
        assert auth.current().root == "http://h/k8s/c-1"


def test_errors_name_the_server_without_its_secrets(tmp_path: Path) -> None:
    """A query may have a token, as that of a kubeconfig's server behind a proxy."""
    for root in ("http://me:secret@h:8/api/v1?token=secret", "http://h:8/?secret"):
        with closing(ApiAuth({"orch_api_root": root})) as auth:
            assert auth.place.startswith("API server http://")
            assert "secret" not in auth.place


def test_single_fields_override_the_kubeconfig(folder: Path) -> None:
    """This holds for server and token."""
    settings = {"kubeconfig": kubeconfig(folder, document()), "orch_api_root": "https://other:1", "k8s_auth_token": "mine"}
    with closing(ApiAuth(settings)) as auth:
        assert auth.current().root == "https://other:1"
        assert auth.current().authorization() == "Bearer mine"


def test_relative_paths_are_relative_to_the_kubeconfig(folder: Path) -> None:
    """This holds for the CA and for a token, which is read without its line end."""
    (folder / "token").write_text(f"{SECRET}\n")
    path = kubeconfig(folder, document(users=[{"name": "u", "user": {"tokenFile": "token"}}]))
    with closing(ApiAuth({"kubeconfig": path})) as auth:
        credentials = auth.current()
        assert credentials.root == "https://127.0.0.1:6443"
        assert credentials.configuration.ssl_ca_cert == str(folder / "ca.crt")
        assert credentials.authorization() == f"Bearer {SECRET}"


def test_changed_files_are_read_again(folder: Path) -> None:
    """A file that is written in place counts as changed. Unchanged files are not read."""
    path = kubeconfig(folder, yaml.safe_dump(document()))
    with closing(ApiAuth({"kubeconfig": path})) as auth:
        first = auth.current()
        assert auth.current() is first
        kubeconfig(folder, document(users=[{"name": "u", "user": {"token": "another"}}]))
        assert auth.current().authorization() == "Bearer another"
        assert auth.renewed(first) is auth.current()


def test_partly_written_kubeconfig_is_not_used_yet(folder: Path) -> None:
    """A program may be writing it in place. Only a call that the API server has refused gets the error."""
    path = kubeconfig(folder, document())
    with closing(ApiAuth({"kubeconfig": path})) as auth:
        first = auth.current()
        kubeconfig(folder, "clusters: [")
        assert auth.current() is first
        with pytest.raises(CallerError, match="is not YAML"):
            auth.renewed(first)
        kubeconfig(folder, document(users=[{"name": "u", "user": {"token": "another"}}]))
        assert auth.current().authorization() == "Bearer another"


def test_error_names_a_removed_token_file(folder: Path) -> None:
    """It is raised when the token is needed."""
    token = folder / "token"
    token.write_text(SECRET)
    path = kubeconfig(folder, document(users=[{"name": "u", "user": {"tokenFile": "token"}}]))
    with closing(ApiAuth({"kubeconfig": path})) as auth:
        token.unlink()
        with pytest.raises(CallerError, match=r"token file '.*' cannot be read: No such file"):
            auth.current().authorization()


def test_pod_uses_its_service_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    """No setting is necessary there."""
    (tmp_path / "token").write_text(SECRET)
    monkeypatch.setattr("svc.datastore.orch.auth._INSIDE", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    with closing(ApiAuth({})) as auth:
        assert auth.current().root == "https://[fd00::1]:6443"
        assert auth.current().authorization() == f"Bearer {SECRET}"


def test_error_names_the_missing_client_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how to install the extra. Only an access that is not plain needs the client."""
    for name in [name for name in sys.modules if name.startswith("svc.datastore.orch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    for name in [name for name in sys.modules if name.startswith("kubernetes.")]:
        monkeypatch.delitem(sys.modules, name)
    open_client({"orch_api_root": "https://h"}).close()
    path = kubeconfig(folder, document(users=[{"name": "u", "user": {"token": "t", "username": "x"}}]))
    with pytest.raises(CallerError, match=r"kubernetes is not installed: install the extra orch: .*'svc-cni\[orch\]'"):
        open_client({"kubeconfig": path})


def test_installed_access_does_not_load_the_client(folder: Path) -> None:
    """Loading it takes 25 MiB and 0.3 s, and a node's agent and installer have no use for it."""
    authority = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    (folder / "token").write_text(SECRET)
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": authority}
    path = kubeconfig(
        folder, document(clusters=[{"name": "c", "cluster": cluster}], users=[{"name": "u", "user": {"tokenFile": "token"}}])
    )
    code = (
        "import sys; from svc.datastore.open import open_client\n"
        f"for settings in ({{'kubeconfig': {path!r}}}, {{'orch_api_root': 'https://127.0.0.1:1', 'k8s_auth_token': 'x'}}):\n"
        "    open_client(settings).close()\n"
        "assert 'kubernetes' not in sys.modules\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"certificate-authority": "ca.crt"}, {"token": SECRET}),
        ({"certificate-authority": "ca.crt"}, {"tokenFile": "token"}),
        ({"certificate-authority": "ca.crt"}, {"token": SECRET, "tokenFile": "token"}),
        ({"certificate-authority-data": "CA"}, {"tokenFile": "token"}),
        ({"certificate-authority-data": "CA", "certificate-authority": "ca.crt"}, {}),
        ({}, {"token": SECRET}),
    ],
)
def test_plain_access_equals_that_of_the_client(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cluster: Json, user: Json
) -> None:
    if "certificate-authority-data" in cluster:
        cluster["certificate-authority-data"] = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    (folder / "token").write_text(SECRET)
    cluster["server"] = "https://127.0.0.1:6443/"
    changes = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}]}
    path = kubeconfig(folder, document(**changes))

    def found() -> tuple[object, ...]:
        with closing(ApiAuth({"kubeconfig": path})) as auth:
            current = auth.current()
            context = current.pool.connection_pool_kw["ssl_context"]
            known = context.get_ca_certs() if cluster.keys() - {"server"} else None
            return current.root, current.authorization(), current.header, current.token, known, context.verify_mode

    plain = found()
    assert not needs_client(path)
    monkeypatch.setattr(auth_module, "of_kubeconfig", lambda *_: None)
    assert found() == plain


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"insecure-skip-tls-verify": True}, {}),
        ({"proxy-url": "http://127.0.0.1:1"}, {}),
        ({"tls-server-name": "x"}, {}),
        ({}, {"client-certificate": "mine.crt", "client-key": "mine.key"}),
        ({}, {"exec": {"command": "/none"}}),
        ({}, {"auth-provider": {"name": "oidc"}}),
        ({"certificate-authority-data": "="}, {}),
        ({"certificate-authority-data": ""}, {}),
        ({"certificate-authority": "none"}, {}),
        ({}, {"tokenFile": "none"}),
        ({"server": 1}, {}),
    ],
)
def test_other_access_needs_the_client(folder: Path, cluster: Json, user: Json) -> None:
    clusters = [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443", **cluster}}]
    assert needs_client(kubeconfig(folder, document(clusters=clusters, users=[{"name": "u", "user": user}])))


def test_access_by_a_proxy_needs_the_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kubeconfig(folder, document())
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert needs_client(path)
    with closing(ApiAuth({"orch_api_root": "https://10.0.0.1:6443"})) as auth:
        assert isinstance(auth.current().pool, urllib3.ProxyManager)


def test_token_that_cannot_be_sent_is_not_shown() -> None:
    """The error says that the token is the cause."""
    with closing(open_client({"orch_api_root": "http://127.0.0.1:1", "k8s_auth_token": f"{SECRET}\nsecond line"})) as client:
        with pytest.raises(StoreError, match="cannot be sent") as refusal:
            client.get("/api")
    assert "the token" in refusal.value.details
    assert SECRET not in str(refusal.value)


def test_client_package_is_loaded_only_for_use(tmp_path: Path) -> None:
    """A node with the embedded store does not load it."""
    program = """
import sys
from pathlib import Path
from svc.datastore.open import open_backend
from svc.names import DEFAULT
open_backend({"kind": "embedded"}, Path(sys.argv[1]), DEFAULT).close()
print([name for name in ("kubernetes", "urllib3", "yaml") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ApiError(404, "NotFound", "none", call="GET x"), NotFound),
        (ApiError(404, "", "404 page not found", call="GET x"), ApiError),
        (ApiError(409, "Conflict", "the object has been modified", call="PUT x"), Conflict),
        (
            ApiError(409, "Conflict", "Precondition failed: UID in precondition: a, UID in object meta: b", call="PUT x"),
            NotFound,
        ),
        (ApiError(422, "Invalid", "x", call="PUT x", fields=frozenset({"metadata.resourceVersion"})), Conflict),
        (ApiError(422, "Invalid", "x", call="PUT x", fields=frozenset({"metadata.uid"})), NotFound),
        (ApiError(422, "Invalid", "x", call="PUT x", fields=frozenset({"metadata.uid", "spec.cidr"})), ApiError),
        (ApiError(403, "Forbidden", "x", call="PUT x"), ApiError),
    ],
)
def test_errors_of_the_server_become_errors_of_the_store(error: ApiError, expected: type[StoreError]) -> None:
    """Only errors that mean a missing or changed key become another type."""
    assert type(refusal(HandleKey("h"), error)) is expected


def test_error_of_a_silent_server_has_no_credentials(folder: Path) -> None:
    """The URL may contain them."""
    cluster = {"server": f"http://admin:{SECRET}@127.0.0.1:1"}
    with closing(
        open_client({"kubeconfig": kubeconfig(folder, document(clusters=[{"name": "c", "cluster": cluster}]))})
    ) as client:
        with pytest.raises(StoreError, match=r"API server http://\.\.\.@127\.0\.0\.1:1 does not answer") as caught:
            client.get("/version")
    assert SECRET not in str(caught.value)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason=ONE_PROCESSOR)
def test_credential_program_is_not_pinned_to_a_cpu(folder: Path) -> None:
    """This holds for its first execution, and for the next one when its token has expired."""
    seen, program = folder / "seen", folder / "program"
    status = {"token": SECRET, "expirationTimestamp": "2020-01-01T00:00:00Z"}
    answer = json.dumps({"apiVersion": EXEC, "kind": "ExecCredential", "status": status})
    program.write_text(f"#!/bin/sh\ngrep ^Cpus_allowed: /proc/self/status >>{seen}\necho '{answer}'\n")
    program.chmod(0o755)
    user = {"exec": {"command": str(program), "apiVersion": EXEC}}
    path = kubeconfig(folder, document(users=[{"name": "u", "user": user}]))

    def call_concurrently() -> None:
        CPU_PINNING.call_begins(concurrent=True)
        auth = ApiAuth({"kubeconfig": path})
        CPU_PINNING.unpin()
        CPU_PINNING.call_begins(concurrent=True)
        assert len(os.sched_getaffinity(0)) == 1
        assert auth.current().authorization() == f"Bearer {SECRET}"

    try:
        with ThreadPoolExecutor() as worker:
            worker.submit(call_concurrently).result()
    finally:
        CPU_PINNING.unpin()
    plain = subprocess.run(["grep", "^Cpus_allowed:", "/proc/self/status"], capture_output=True, text=True, check=True)
    lines = seen.read_text().splitlines()
    assert len(lines) >= 2
    assert set(lines) == {plain.stdout.rstrip()}
