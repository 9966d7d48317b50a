"""How programs of a manifest reach etcd: the addresses, the files for TLS and the Secret that has them. Sessions with it."""

import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

from svc import deadline
from svc.atomic_file import replace
from svc.datastore.api import StoreError
from svc.datastore.etcd.settings import url_errors
from svc.datastore.open import open_backend
from svc.deploy.manifests.pod_parts import CERTIFICATE_FILES, CERTIFICATES
from svc.model.errors import CallerError, reason_of
from svc.names import Names
from svc.upgrade.bundle import WORKLOADS
from svc.upgrade.places import Place, place_of
from svc.values import dataclass

if TYPE_CHECKING:
    from svc.datastore.etcd.store import EtcdStore

Json = dict[str, Any]

ENDPOINTS: Final = "etcd_endpoints"
VARIABLE: Final = "ETCD_ENDPOINTS"
TYPE_VARIABLE, ETCD = "DATASTORE_TYPE", "etcdv3"
KEYS: Final = tuple(CERTIFICATE_FILES.values())
"""The keys of the Secret."""

_OPTIONS: Final = (tuple(key.replace("-", "_") for key in KEYS), tuple(CERTIFICATE_FILES))
"""The names of the files: in ConfigMaps, and in network lists."""

_TOKEN: Final = "__"  # begins what the installer replaces  # noqa: S105
_SECONDS: Final = 10.0  # for an answer of one server
_FILE_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Access:
    """Something that names the servers, and the files for TLS by option. A file without a name has an empty one."""

    where: str
    endpoints: str
    files: Mapping[str, str]


def variables_of(workload: Json) -> dict[str, str]:
    """Return the variables of all containers; empty values for those that come from elsewhere."""
    pod = workload["spec"]["template"]["spec"]
    containers = (*(pod.get("initContainers") or ()), *pod["containers"])
    return {each["name"]: str(each.get("value") or "") for one in containers for each in one.get("env") or ()}


def uses_etcd(agent: Json, configs: Iterable[Json]) -> bool:
    """Return whether a DaemonSet of the agent, or one of its ConfigMaps, names etcd as the datastore."""
    variables = variables_of(agent)
    if variables.get(TYPE_VARIABLE) == ETCD or VARIABLE in variables:
        return True
    return any(f'"{ETCD}"' in str(text) for config in configs for text in (config.get("data") or {}).values())


def accesses(documents: Iterable[Json]) -> Iterator[Access]:
    """Yield what documents say of etcd."""
    for document in documents:
        where = str(place_of(document))
        if document["kind"] == "ConfigMap":
            data = document.get("data") or {}
            if ENDPOINTS in data:
                yield Access(where, str(data[ENDPOINTS] or ""), {name: str(data.get(name) or "") for name in _OPTIONS[0]})
            yield from (_access(where, plugin) for text in data.values() for plugin in _plugins(str(text)))
        elif document["kind"] in WORKLOADS and (value := variables_of(document).get(VARIABLE)):
            yield Access(where, value, {})


def problems(found: Iterable[Access], secret: Place | None, data: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with addresses, and with files that do not fit the keys of the Secret."""
    present = [key for key in KEYS if data.get(key)]
    if present and len(present) < len(KEYS):
        missing = ", ".join(key for key in KEYS if key not in present)
        yield f"{secret} lacks {missing}: TLS needs all of {', '.join(KEYS)}, or none"
    for each in found:
        yield from _endpoint_problems(each)
        named = [option for option, path in each.files.items() if path]
        if named and len(named) < len(each.files):
            missing = ", ".join(option for option in each.files if option not in named)
            yield f"{each.where} has no {missing}: give all files for TLS, or none"
        elif named and not present:
            yield f"{each.where} names files for TLS, and {secret or 'no Secret'} has none"
        elif each.files and present and not named:
            yield f"{secret} has files for TLS, and {each.where} does not name them: {', '.join(each.files)}"


def secret_place(agent: Json) -> Place | None:
    """Return the place of the Secret that a DaemonSet mounts for etcd."""
    for volume in agent["spec"]["template"]["spec"].get("volumes") or ():
        if volume["name"] == CERTIFICATES and "secret" in volume:
            return Place("v1", "Secret", str(agent["metadata"].get("namespace") or ""), volume["secret"]["secretName"])
    return None


def data_of(secret: Json | None) -> dict[str, str]:
    """Return the entries of a Secret that are not empty, in base64."""
    plain = {key: b64encode(str(text).encode()).decode() for key, text in ((secret or {}).get("stringData") or {}).items()}
    return {key: text for key, text in {**((secret or {}).get("data") or {}), **plain}.items() if text}


@contextmanager
def session(endpoints: str, data: Mapping[str, str], names: Names) -> "Iterator[EtcdStore]":
    """Open a session with the entries of a Secret. Raise StoreError, and CallerError if they cannot be used."""
    with TemporaryDirectory(prefix="svc-upgrade-") as folder:  # which only its owner may enter
        settings = {"kind": ETCD, ENDPOINTS: endpoints, **_written(Path(folder), data)}
        with closing(open_backend(settings, Path(folder), names)) as backend, deadline.limit(_SECONDS):
            yield cast("EtcdStore", backend)


def unreached(endpoints: str, data: Mapping[str, str], names: Names) -> Iterator[str]:
    """Yield a sentence for each server that does not answer."""
    for url in _listed(endpoints):
        try:
            with session(url, data, names) as store:
                store.revision()
        except (StoreError, CallerError) as error:
            yield f"etcd at {url} cannot be used: {error.as_text()}"


def _written(folder: Path, data: Mapping[str, str]) -> dict[str, str]:
    """Write the entries of a Secret into a folder. Return the options that name them."""
    present = {option: key for option, key in CERTIFICATE_FILES.items() if data.get(key)}
    try:
        for key in present.values():
            replace(folder / key, (_decoded(key, data[key]),), _FILE_MODE)
    except OSError as error:
        raise CallerError(f"{folder} cannot be written: {reason_of(error)}", details="make room there") from error
    return {option: str(folder / key) for option, key in present.items()}


def _decoded(key: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except NotBase64:
        raise CallerError(f"the entry {key} of the Secret is not base64") from None


def _endpoint_problems(access: Access) -> Iterator[str]:
    if not _listed(access.endpoints):
        yield f"{access.where} has no {ENDPOINTS}: put the addresses of etcd there"
    for each in url_errors(access.endpoints):
        yield f"{access.where} has {ENDPOINTS} = {each.value!r}, which {each.problem}: put the addresses of etcd there"


def _listed(endpoints: str) -> list[str]:
    return [url.strip() for url in endpoints.split(",") if url.strip()]


def _plugins(text: str) -> Iterator[Json]:
    """Yield the plugins of a network list that name etcd. A template with tokens does not count."""
    if ENDPOINTS not in text:
        return
    try:
        found = json.loads(text)
    except ValueError:
        return
    plugins = found.get("plugins") if isinstance(found, dict) else None
    plugins = plugins if isinstance(plugins, list) else ()
    named = (each for each in plugins if isinstance(each, dict) and ENDPOINTS in each)
    yield from (each for each in named if not str(each[ENDPOINTS]).startswith(_TOKEN))


def _access(where: str, plugin: Json) -> Access:
    return Access(where, str(plugin[ENDPOINTS] or ""), {name: str(plugin.get(name) or "") for name in _OPTIONS[1]})
