"""The etcd settings of a network configuration: their meaning, and errors about invalid ones."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.certificates import Authority, encrypt
from svc.datastore.etcd.settings import Endpoint, read_settings
from svc.datastore.open import open_backend
from svc.model.errors import CallerError, Code
from svc.model.field_errors import display
from svc.names import DEFAULT


def authorities(**settings: str) -> list[str]:
    return [str(endpoint) for endpoint in read_settings({"kind": "etcdv3", **settings}).endpoints]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://10.0.0.1:2379", ["10.0.0.1:2379"]),
        (" http://a:1 ,http://b:2/,, http://a:1", ["a:1", "b:2"]),
        ("http://etcd.test", ["etcd.test:2379"]),
        ("http://[fd00::1]:23", ["[fd00::1]:23"]),
        ("http://[::1]", ["[::1]:2379"]),
    ],
)
def test_endpoints_are_urls_separated_by_commas(given: str, expected: list[str]) -> None:
    """The port can be omitted. A repeated endpoint is used once."""
    assert authorities(etcd_endpoints=given) == expected


def test_default_endpoint_is_the_local_server() -> None:
    """Empty settings count as absent."""
    cluster = read_settings({"kind": "etcdv3", "etcd_endpoints": "", "etcd_cert_file": " "})
    assert cluster.endpoints == (Endpoint("127.0.0.1", 2379),)
    assert cluster.tls is None


def test_deprecated_settings_are_used_with_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """They are used if no other setting locates etcd."""
    root = str(Authority(tmp_path, "ours").root)
    cluster = read_settings({"etcd_authority": "10.0.0.1:99", "etcd_scheme": "https", "etcd_ca_cert_file": root})
    assert cluster.endpoints == (Endpoint("10.0.0.1", 99),)
    assert cluster.tls is not None
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "etcd_authority = '10.0.0.1:99' is deprecated: set etcd_endpoints" in caplog.text


def test_deprecated_settings_are_ignored_beside_endpoints(caplog: pytest.LogCaptureFixture) -> None:
    """A warning is logged in this case as well."""
    given = authorities(etcd_authority="10.0.0.1:99", etcd_scheme="https", etcd_endpoints="http://a:1")
    assert given == ["a:1"]
    assert "ignored" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"etcd_endpoints": "http://a:1", "etcd_discovery_srv": "b"}, ["etcd_discovery_srv = 'b'", "excludes etcd_endpoints"]),
        ({"etcd_endpoints": "http://a:1,https://b:2"}, ["etcd_endpoints", "http://a:1,https://b:2", "mixes http and https"]),
        ({"etcd_endpoints": "a:1"}, ["etcd_endpoints = 'a:1'", "not the URL"]),
        ({"etcd_endpoints": "http://a:x"}, ["http://a:x", "not the URL"]),
        ({"etcd_endpoints": "http://a:0"}, ["http://a:0", "not the URL"]),
        ({"etcd_endpoints": "http://a:99999"}, ["http://a:99999", "not the URL"]),
        ({"etcd_endpoints": "http://:1"}, ["http://:1", "not the URL"]),
        ({"etcd_endpoints": "http://[::1"}, ["http://[::1", "not the URL"]),
        ({"etcd_endpoints": "http://a/v3"}, ["http://a/v3", "not the URL"]),
        ({"etcd_endpoints": "http://user:secret@a"}, ["has a user or password, which svc does not send"]),
        ({"etcd_endpoints": "unix:///run/etcd"}, ["unix:///run/etcd", "not the URL"]),
        ({"etcd_endpoints": "http://a b"}, ["http://a b", "not the URL"]),
        ({"etcd_endpoints": ","}, ["etcd_endpoints = ','", "names no server"]),
        ({"etcd_authority": "host name"}, ["etcd_authority", "not the URL"]),
        ({"etcd_scheme": "ftp"}, ["etcd_scheme = 'ftp'"]),
    ],
)
def test_invalid_endpoints_are_refused(settings: dict[str, str], words: list[str]) -> None:
    """The error has the setting, its value and the fix, but no password."""
    with pytest.raises(CallerError) as caught:
        read_settings(settings)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.code == Code.INVALID_NETCONF
    assert caught.value.details
    assert "secret" not in str(caught.value)


Files = dict[str, Path]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.issue("client")
    return {"ca_cert": authority.root, "cert": certificate, "key": key}


def read_tls(files: Files) -> None:
    given = {f"etcd_{name}_file": str(path) for name, path in files.items()}
    cluster = read_settings({"etcd_endpoints": "https://a:1", **given})
    assert cluster.tls is not None
    assert cluster.files == tuple(files.values())


def without(name: str) -> Callable[[Files], Files]:
    return lambda files: {key: path for key, path in files.items() if key != name}


def holding(name: str, text: str) -> Callable[[Files], Files]:
    def change(files: Files) -> Files:
        files[name].write_text(text)
        return files

    return change


def missing(name: str) -> Callable[[Files], Files]:
    return lambda files: {**files, name: Path("/nowhere/file.pem")}


def another_key(files: Files) -> Files:
    return {**files, "key": Authority(files["key"].parent, "other").issue("client")[1]}


def encrypted_key(files: Files) -> Files:
    encrypt(files["key"])
    return files


def test_valid_files_are_read(files: Files) -> None:
    """The client certificate is optional."""
    read_tls(files)
    read_tls({"ca_cert": files["ca_cert"]})


@pytest.mark.parametrize(
    ("change", "name", "problem"),
    [
        (without("key"), "cert", "needs etcd_key_file"),
        (without("cert"), "key", "needs etcd_cert_file"),
        (missing("ca_cert"), "ca_cert", "cannot be read: No such file"),
        (missing("cert"), "cert", "cannot be read: No such file"),
        (missing("key"), "key", "cannot be read: No such file"),
        (lambda files: {**files, "key": files["key"].parent}, "key", "cannot be read: Is a directory"),
        (holding("ca_cert", "nothing"), "ca_cert", "holds no certificate"),
        (holding("ca_cert", ""), "ca_cert", "holds no certificate"),
        (holding("cert", "nothing"), "cert", "holds no certificate"),
        (holding("key", "nothing"), "key", "is not a key for the certificate: it cannot be read"),
        (another_key, "key", "is not a key for the certificate: it is of another certificate"),
        (encrypted_key, "key", "is not a key for the certificate: it is encrypted"),
    ],
)
def test_invalid_files_are_refused(files: Files, change: Callable[[Files], Files], name: str, problem: str) -> None:
    """The error has the setting, the file and the fix, but nothing of its content."""
    changed = change(files)
    with pytest.raises(CallerError) as caught:
        read_tls(changed)
    assert f"etcd_{name}_file = {display(str(changed[name]))} {problem}" in caught.value.msg
    assert caught.value.details
    assert "PRIVATE" not in str(caught.value)


def test_all_errors_are_reported_together(files: Files) -> None:
    """The example has an invalid endpoint and a missing file."""
    settings = {"etcd_endpoints": "https://a:1,https://b:x", "etcd_cert_file": "/nowhere", "etcd_key_file": str(files["key"])}
    with pytest.raises(CallerError, match="2 errors") as caught:
        read_settings(settings)
    assert "https://b:x" in caught.value.details
    assert "etcd_cert_file" in caught.value.details


def test_files_are_ignored_without_tls(files: Files) -> None:
    """A manifest may name files although the server does not use TLS."""
    assert read_settings({"etcd_endpoints": "http://a:1", "etcd_cert_file": "/nowhere"}).files == ()


def test_open_backend_does_not_connect(tmp_path: Path) -> None:
    """A session opens without a server. Invalid settings are refused at once."""
    store = open_backend({"kind": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1"}, tmp_path, DEFAULT)
    assert (store.atomic, store.requires_node, store.is_current()) == (True, True, True)
    store.close()
    store.close()
    with pytest.raises(CallerError):
        open_backend({"kind": "etcdv3", "etcd_endpoints": "nonsense"}, tmp_path, DEFAULT)


def run(program: str) -> str:
    """Return the output of a new Python process in which warnings are errors."""
    return subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, capture_output=True, text=True).stdout


def test_embedded_store_imports_no_grpc() -> None:
    """It imports no other package of the etcd store either."""
    program = (
        "import svc.datastore.open, sys; print([m for m in ('grpc', 'etcd3', 'google', 'dns', 'ssl') if m in sys.modules])"
    )
    assert run(program) == "[]\n"


def test_etcd_store_imports_no_dns() -> None:
    """Only the discovery of servers needs the package."""
    assert run("import svc.datastore.etcd.store, sys; print('dns' in sys.modules)") == "False\n"


@pytest.mark.parametrize("module", ["store", "messages", "settings"])
def test_variables_of_grpc_are_set_before_it_is_imported(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC reads them once, and other packages may import it first."""
    for variable in ("GRPC_DNS_RESOLVER", "GRPC_VERBOSITY"):
        monkeypatch.delenv(variable, raising=False)
    program = f"""
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_DNS_RESOLVER"), os.environ.get("GRPC_VERBOSITY"))
sys.meta_path.insert(0, Finder())
import svc.datastore.etcd.{module}, grpc
"""
    assert run(program) == "native NONE\n"


def test_messages_are_those_of_etcd3() -> None:
    """svc builds them itself if the modules of the package cannot be imported. The default descriptor pool is not changed."""
    program = """
from svc.datastore.etcd.messages import rpc
import etcd3
from google.protobuf import descriptor_pool
assert etcd3.etcdrpc.TxnRequest is rpc.TxnRequest
request = rpc.RangeRequest(key=b"k", sort_order="DESCEND")
assert rpc.RangeRequest.FromString(request.SerializeToString()) == request
try:
    descriptor_pool.Default().FindFileByName("kv.proto")
except KeyError:
    print("apart")
"""
    assert run(program) == "apart\n"


@pytest.mark.parametrize(
    ("package", "distribution", "setting"),
    [
        ("etcd3", "etcd3", "etcd_endpoints"),
        ("grpc", "grpcio", "etcd_endpoints"),
        ("google", "protobuf", "etcd_endpoints"),
        ("dns", "dnspython", "etcd_discovery_srv"),
    ],
)
def test_error_names_the_missing_package(tmp_path: Path, package: str, distribution: str, setting: str) -> None:
    """The error has the distribution and the extra. On the package index, the import name may be that of another project."""
    program = f"""
import sys
from pathlib import Path
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from svc.datastore.open import open_backend
from svc.names import DEFAULT
try:
    open_backend({{"kind": "etcdv3", {setting!r}: "http://a"}}, Path({str(tmp_path)!r}), DEFAULT)
except Exception as error:
    print(type(error).__name__, error)
"""
    printed = run(program)
    assert printed.startswith("CallerError")
    assert f"package {distribution} is not installed" in printed
    assert "pip install 'svc-cni[etcd]'" in printed
