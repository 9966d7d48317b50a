"""Address of the API server and credentials, from the settings of a network configuration and its kubeconfig.

Before every request, this module checks the files for changes, which takes microseconds, because other programs renew tokens in
place. It loads the Kubernetes client only for an access that is not plain.
"""

import base64
import json
import logging
import os
import re
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import urllib3
import yaml
from urllib3.util.ssl_ import create_urllib3_context

from svc import deadline, tls
from svc.atomic_file import FileVersion, file_version
from svc.cpu_pinning import CPU_PINNING
from svc.datastore.orch.plain_access import PlainConfiguration, has_proxy, of_kubeconfig
from svc.imports import whole_imports
from svc.model.errors import CallerError, Code, SvcError
from svc.model.field_errors import display, without_secrets_in_urls
from svc.model.shortage import shortage
from svc.values import dataclass

if TYPE_CHECKING:
    from svc.datastore.orch.client_access import ClientConfiguration

    Configuration = PlainConfiguration | ClientConfiguration

CONNECTIONS = 32  # idle connections kept per server: one for each parallel thread and each watch

_RENEWAL_SECONDS = 10.0  # for the program that returns credentials; also for a thread that waits for it
_SLOW_PROGRAM = "the program of the kubeconfig that gives them takes too long: run it by hand"
_TOKEN = "k8s_auth_token"  # noqa: S105 the name of a field
_FILES = {"k8s_client_certificate": "cert_file", "k8s_client_key": "key_file", "k8s_certificate_authority": "ssl_ca_cert"}
_INSIDE = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # inside a pod
_URL_REMEDY = "give one such as https://10.0.0.1:6443"
_COMPARE = "compare it with `kubectl config view`"  # the fix for a kubeconfig
_API_PATH = re.compile(r"/api(/.*)?$")

_log = logging.getLogger(__name__)

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Token:
    """Origin of a token: a file, or a program that renews it. By default the token is in the settings or does not exist."""

    file: str = ""
    is_renewed: bool = False


@dataclass(frozen=True, slots=True)
class Credentials:
    """Result of reading the settings and their files once."""

    root: str  # URL of the server, without a slash at its end
    pool: urllib3.PoolManager
    configuration: "Configuration"
    token: _Token
    header: str  # the Authorization header, unless the token is read or renewed for each request
    versions: dict[str, FileVersion]  # of the files that were read

    @property
    def place(self) -> str:
        return f"API server {without_secrets_in_urls(self.root)}"

    def authorization(self) -> str:
        """Return the value of the Authorization header; empty for other authentication. Renew an expired token of a plugin.

        Raise CallerError if the file of the token cannot be read.
        """
        if self.token.file:
            return f"Bearer {_read_token(self.token.file)}"
        if not self.token.is_renewed:
            return self.header
        CPU_PINNING.unpin_thread()  # the Kubernetes client may run the credential program again
        return _header(self.configuration)


class ApiAuth:
    """Current credentials. Thread-safe. Raise CallerError if the settings are invalid."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._credentials = _read(settings)
        self._reporting = threading.Lock()
        self._reported: tuple[str, ...] = ()  # why the files have not been readable since they changed

    @property
    def place(self) -> str:
        return self._credentials.place

    def current(self) -> Credentials:
        """Return the credentials. Reload them if a file has changed. Keep the previous ones if a file cannot be read yet."""
        credentials = self._credentials
        if {name: file_version(name) for name in credentials.versions} == credentials.versions:
            self._reported = ()
            return credentials
        try:
            return self.renewed(credentials)
        except CallerError as error:
            with self._reporting:
                if str(error) not in self._reported:
                    self._reported += (str(error),)
                    _log.warning("going on with the credentials read before: %s", str(error))
            return credentials

    def renewed(self, refused: Credentials) -> Credentials:
        """Reload the credentials that the API server refused, and return the new ones.

        If another thread has reloaded them, return its result. Raise CallerError if they cannot be read.
        """
        if not self._lock.acquire(timeout=deadline.remaining(_RENEWAL_SECONDS)):
            raise CallerError("the credentials are being renewed", details=_SLOW_PROGRAM, code=Code.TRY_AGAIN)
        try:
            if self._credentials is refused:
                self._credentials = _read(self.settings)
                refused.pool.clear()
            return self._credentials
        finally:
            self._lock.release()

    def token_expires(self) -> float | None:
        """Return the Unix time at which the token expires; None if it is renewed by a program, or names no end."""
        credentials = self._credentials
        if credentials.token.is_renewed:
            return None
        try:
            return _expiry(credentials.authorization())
        except (SvcError, ValueError, TypeError, AttributeError):  # unreadable, or not a token of JSON
            return None

    def close(self) -> None:
        self._credentials.pool.clear()


def _read(settings: Settings) -> Credentials:
    kubeconfig = settings.get("kubeconfig", "")
    if kubeconfig:
        configuration, token = _load_kubeconfig(Path(kubeconfig))
    else:
        configuration = _client().ClientConfiguration() if has_proxy(os.environ) else PlainConfiguration()
        token = _Token() if settings.get("orch_api_root") else _load_pod_account(configuration)
    files = [kubeconfig, token.file]
    token = _override(settings, configuration, token)
    context = _tls(f"kubeconfig {kubeconfig!r}" if kubeconfig else "the access to the API", configuration)
    files += [str(getattr(configuration, field) or "") for field in _FILES.values()]
    versions = {name: file_version(name) for name in files if name}
    if not configuration.verify_ssl:  # set in the kubeconfig on purpose: a warning for every request is not useful
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    pool = configuration.pool(context, CONNECTIONS)
    return Credentials(configuration.host.rstrip("/"), pool, configuration, token, _header(configuration), versions)


def _client() -> Any:
    """Return the module that uses the Kubernetes client."""
    with whole_imports():
        from svc.datastore.orch import client_access
    return client_access


def _expiry(authorization: str) -> float | None:
    """Return the field `exp` of a JSON Web Token, if the token is one. The signature is the server's concern."""
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    end = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))).get("exp")
    return float(end) if isinstance(end, int | float) else None


def _header(configuration: "Configuration") -> str:
    found = configuration.auth_settings().get("BearerToken")
    return str(found["value"] or "").strip() if found else ""


def _load_kubeconfig(path: Path) -> "tuple[Configuration, _Token]":
    """Return the access of a kubeconfig, and the origin of its token. Raise CallerError if it cannot be used."""
    data = _parsed(path)
    user = _user_of(path, data)
    token_file = str(user.get("tokenFile") or "")
    if token_file:
        token_file = os.path.normpath(path.parent / token_file)
        _require_file(f"kubeconfig {str(path)!r}: tokenFile", token_file)
    plain = None if has_proxy(os.environ) else of_kubeconfig(data, path.parent)
    configuration = plain or _load_by_client(path, data)
    if "token" in user:
        return configuration, _Token()
    if "exec" in user and not configuration.cert_file and not _header(configuration):  # the client only logs the reason
        command = user["exec"].get("command") if isinstance(user["exec"], dict) else None
        reason = f"exec.command = {display(command)} gave no credentials in time"
        raise _invalid(path, reason, "see that it can be executed, and run it by hand")
    return configuration, _Token(token_file, is_renewed="exec" in user or "auth-provider" in user)


def _load_by_client(path: Path, data: dict[str, Any]) -> "ClientConfiguration":
    client = _client()
    CPU_PINNING.unpin_thread()  # the Kubernetes client may run the credential program
    try:
        loaded: ClientConfiguration = client.load(data, path.parent)
    except client.Refused as error:
        raise _invalid(path, str(error), _COMPARE) from None
    except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
        raise _invalid(path, f"an entry cannot be used ({type(error).__name__})", _COMPARE) from None
    return loaded


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise _invalid(path, f"cannot be read: {error.strerror}", "name a file that this user may read") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise _invalid(path, f"is not YAML{line}", _COMPARE) from None
    if not isinstance(data, dict):
        raise _invalid(path, "is empty or no mapping", "name a kubeconfig file")
    return data


def _user_of(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Return the user of the current context; {} if it has none. Raise CallerError if the context or cluster is invalid."""
    current = data.get("current-context")
    if not current:
        raise _invalid(path, "has no current-context", "set one: kubectl config use-context NAME")
    context = _entry(path, data, "context", current)
    name = context.get("cluster")
    server = str(_entry(path, data, "cluster", name).get("server") or "")
    if server and not _is_url(server):
        raise _invalid(path, f"cluster {name!r}: server = {display(server)} is not a URL", _URL_REMEDY)
    if not server:
        raise _invalid(path, f"cluster {name!r} has no server", "give the URL of the API server")
    return _entry(path, data, "user", context["user"]) if context.get("user") else {}


def _entry(path: Path, data: dict[str, Any], kind: str, name: object) -> dict[str, Any]:
    """Return the content of a named context, cluster or user. Raise CallerError if it does not exist."""
    rows = data.get(f"{kind}s")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("name") == name:
            return row.get(kind) or {}
    raise _invalid(path, f"has no entry {name!r} in {kind}s", "name one that exists, or add it")


def _invalid(path: Path, reason: str, remedy: str) -> CallerError:
    return CallerError(f"kubeconfig {str(path)!r} {reason}", details=remedy)


def _load_pod_account(configuration: "Configuration") -> _Token:
    """Load the service account of the pod in which svc runs. Raise CallerError if it does not exist."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = _INSIDE / "token"
    if not host or not token.exists():
        remedy = "give the path of a kubeconfig, or orch_api_root; neither is needed only inside a pod"
        raise CallerError("no kubeconfig is given", details=remedy)
    configuration.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    configuration.ssl_ca_cert = str(_INSIDE / "ca.crt")
    return _Token(str(token))


def _override(settings: Settings, configuration: "Configuration", token: _Token) -> _Token:
    """Apply the fields of the settings, which override those of the kubeconfig. Return the origin of the token."""
    if root := settings.get("orch_api_root", ""):
        if not _is_url(root):
            raise CallerError(f"orch_api_root = {display(root)} is not a URL", details=_URL_REMEDY)
        configuration.host = _API_PATH.sub("", root.rstrip("/")).rstrip("/")
    for field, target in _FILES.items():
        if name := settings.get(field, ""):
            _require_file(field, name)
            setattr(configuration, target, name)
    if given := settings.get(_TOKEN, ""):
        configuration.api_key = {"BearerToken": f"Bearer {given}"}
        configuration.refresh_api_key_hook = None
        return _Token()
    return token


def _is_url(text: str) -> bool:
    """Return whether the text is a valid http or https URL with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or unbalanced brackets
        return False


def _tls(origin: str, configuration: "Configuration") -> ssl.SSLContext:
    """Return the TLS context of all connections. Raise CallerError, because the errors of TLS name neither file nor field."""
    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE)
    tls.prepare(context)
    try:
        if configuration.ssl_ca_cert:
            context.load_verify_locations(configuration.ssl_ca_cert)
        elif configuration.ca_data:
            context.load_verify_locations(cadata=configuration.ca_data)
        else:
            context.load_default_certs()
    except (ssl.SSLError, OSError):
        reason = "certificate-authority holds no certificate that can be read"
        raise CallerError(f"{origin}: {reason}", details="give one or more certificates, in PEM") from None
    if configuration.cert_file and (problem := tls.load_pair(context, configuration.cert_file, configuration.key_file)):
        odd = "or client-certificate " if problem == tls.UNREADABLE else ""
        details = "give the private key of client-certificate, both in PEM, without a password"
        raise CallerError(f"{origin}: client-key {odd}{problem}", details=details)
    return context


def _read_token(name: str) -> str:
    try:
        return Path(name).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        if lack := shortage(error):
            raise lack from error
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CallerError(
            f"token file {name!r} cannot be read: {reason}", details="see who renews it, or name another one"
        ) from None


def _require_file(field: str, name: str) -> None:
    if not os.access(name, os.R_OK):
        raise CallerError(f"{field} = {name!r} cannot be read", details="name a file that exists and that this user may read")
