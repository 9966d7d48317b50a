"""Version of the Kubernetes API server, for the connection test. The full client is avoided because its import takes 0.3 s."""

import base64
import http.client
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from svc.model.errors import CallerError, Code, PeerError
from svc.tls import prepare

Json = dict[str, Any]


def server_version(kubeconfig: str, seconds: float) -> str:
    """Return the version of the current context's server. Raise CallerError for an unusable file, PeerError if the server
    fails.
    """
    path = Path(kubeconfig)
    cluster, user = _current(path)
    server = str(cluster.get("server", ""))
    try:
        connection = _connection(path, cluster, user, seconds)
        try:
            connection.request("GET", f"{urlsplit(server).path.rstrip('/')}/version", headers=_authorization(path, user))
            response = connection.getresponse()
            return _git_version(server, response.status, response.read(1 << 16))
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PeerError(f"API server {server!r} does not answer: {error}", details=f"see {kubeconfig!r}") from None


def _git_version(server: str, status: int, body: bytes) -> str:
    if status != http.client.OK:
        raise PeerError(f"API server {server!r} answers with status {status}", details="see its address and the credentials")
    return str(json.loads(body)["gitVersion"])


def _connection(path: Path, cluster: Json, user: Json, seconds: float) -> http.client.HTTPConnection:
    url = urlsplit(str(cluster["server"]))
    if url.scheme == "http":
        return http.client.HTTPConnection(str(url.hostname), url.port, timeout=seconds)
    context = ssl.create_default_context()
    prepare(context)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif authority := _data(path, cluster, "certificate-authority"):
        context.load_verify_locations(cadata=authority.decode())
    certificate, key = _data(path, user, "client-certificate"), _data(path, user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:  # OpenSSL loads certificate chains only from files
            both.write(certificate + b"\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
    return http.client.HTTPSConnection(str(url.hostname), url.port, timeout=seconds, context=context)


def _authorization(path: Path, user: Json) -> dict[str, str]:
    token = str(user.get("token") or "")
    if not token and user.get("tokenFile"):
        token = (path.parent / user["tokenFile"]).read_text()
    return {"Authorization": f"Bearer {token.strip()}"} if token else {}


def _data(path: Path, entry: Json, name: str) -> bytes:
    """Return the data of an entry: inline, or from a file relative to the kubeconfig; empty if it has neither."""
    if inline := entry.get(f"{name}-data"):
        return base64.b64decode(inline)
    return (path.parent / entry[name]).read_bytes() if entry.get(name) else b""


def _current(path: Path) -> tuple[Json, Json]:
    """Return cluster and user of the current context."""
    try:
        config = yaml.safe_load(path.read_bytes())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        urlsplit(cluster["server"])
        return cluster, _named(config["users"], context["user"])["user"] or {}
    except OSError as error:
        raise CallerError(
            f"kubeconfig {str(path)!r} cannot be read: {error.strerror}", details="name another", code=Code.IO_FAILURE
        ) from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, StopIteration):
        raise CallerError(
            f"kubeconfig {str(path)!r} has no current context with a server and a user",
            details="correct it",
            code=Code.DECODING_FAILURE,
        ) from None


def _named(entries: list[Json], name: str) -> Json:
    return next(entry for entry in entries if entry["name"] == name)
