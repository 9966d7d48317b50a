"""The two datastores of a move, as its steps use them: etcd and the Kubernetes API of the run."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final, cast

from svc.admin.ipam_check.observation import Place
from svc.datastore.api import Backend, Conflict, NotFound, StoreError
from svc.datastore.open import open_backend
from svc.model.errors import CallerError
from svc.model.keys import Key
from svc.model.kv_codec import Value
from svc.move import marks, preflight, steps
from svc.move.preflight import Blocker
from svc.move.snapshot import KeepsHistory
from svc.netconf.networklist import check_file, read_netconf
from svc.upgrade.outcomes import Blocked
from svc.upgrade.permitted import PermittedBackend, PermittedClient, PermittedHistory
from svc.upgrade.writer import Changed, Writer
from svc.values import dataclass

Json = dict[str, Any]
Documents = Mapping[Key, Value]

ORCH, ETCD = "orch", "etcdv3"
_RUN: Final = 16  # digits of the name of a run in the marks
_SERVERS: Final = ("etcd_endpoints", "etcd_discovery_srv", "etcd_authority")


@dataclass(frozen=True, slots=True)
class Ends:
    """Settings of source and target without those of the Kubernetes API, which are the run's, and networks with endpoints."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    wired: Sequence[str]

    def to_json(self) -> Json:
        return {"source": dict(self.source), "target": dict(self.target), "wired": list(self.wired)}

    @staticmethod
    def from_json(data: Json) -> "Ends":
        return Ends(data["source"], data["target"], data["wired"])

    def name_of(self, settings: Mapping[str, str]) -> str:
        """Return the name of a datastore, which is the same on each machine."""
        servers = next((settings[name] for name in _SERVERS if settings.get(name)), "")
        return "Kubernetes API" if settings["kind"] == ORCH else f"etcd {','.join(sorted(servers.split(',')))}"


def read_ends(writer: Writer, source: str, target: str) -> Ends:
    """Read the network configurations that name source and target. Raise CallerError."""
    found, wired = [], []
    for option, name in (("--source", source), ("--target", target)):
        if not name:
            raise CallerError(f"{option} is missing", details="give the network configuration that names this datastore")
        check_file(Path(name))
        netconf = read_netconf(Path(name), writer.names)
        found.append(netconf.datastore.to_json())
        wired += [netconf.name] if netconf.type == writer.names.plugin else []
    if {each["kind"] for each in found} != {ORCH, ETCD}:
        kinds = " and ".join(each["kind"] for each in found)
        raise CallerError(f"--source and --target are {kinds}", details=f"one has to be {ETCD}, the other one {ORCH}")
    settings = [{"kind": ORCH, "api_group": each.get("api_group", "")} if each["kind"] == ORCH else each for each in found]
    return Ends(settings[0], settings[1], sorted(set(wired)))


class Sites:
    """Source and target, opened at first use; `writer.resources` closes them. An undo has `ends` from the backup."""

    def __init__(self, writer: Writer, ends: Ends | None = None) -> None:
        self.writer = writer
        self.ends = ends
        self._opened: dict[str, Place] = {}
        self._documents: Documents | None = None
        self._blockers: list[Blocker] | None = None

    def use(self, saved: Sequence[Json]) -> bool:
        """Take the datastores from the entries of a backup, unless they are known. Return whether they are known."""
        if self.ends is None and saved:
            self.ends = Ends.from_json(saved[-1]["ends"])
        return self.ends is not None

    @property
    def known(self) -> Ends:
        assert self.ends is not None
        return self.ends

    @property
    def source(self) -> Place:
        return self._place("source", self.known.source)

    @property
    def target(self) -> Place:
        return self._place("target", self.known.target)

    @property
    def run(self) -> str:
        """The name of the run in the marks: the same for each process that moves this cluster in this direction."""
        info = marks.present(self.source)
        cluster = str(info.spec.get("clusterGUID") or "") if info else ""
        text = json.dumps([cluster, self.known.name_of(self.known.source), self.known.name_of(self.known.target)])
        return hashlib.sha256(text.encode()).hexdigest()[:_RUN]

    @property
    def has_arrived(self) -> bool:
        """Whether the target is in use since this run."""
        return marks.has_arrived(self.target, self.run)

    def documents(self, *, again: bool = False) -> Documents:
        """Return the documents of the locked source at one revision, as they were at the first call, or read `again`."""
        if self._documents is None or again:
            self._documents = steps.export_at_one_revision(self.source).decoded(self.source.names)
        return self._documents

    def forget(self) -> None:
        """Read the documents again at their next use."""
        self._documents = None

    def blockers(self) -> list[Blocker]:
        """Return what blocks the move, as at the first call. What a call in flight may explain does not count."""
        if self._blockers is None:
            self._blockers = preflight.preflight(self.source, self.target, self.run, wait=lambda _seconds, _counts: False)
        return self._blockers

    def _place(self, name: str, settings: Mapping[str, str]) -> Place:
        if name not in self._opened:
            self._opened[name] = self._open(settings)
        return self._opened[name]

    def _open(self, settings: Mapping[str, str]) -> Place:
        writer, is_orch = self.writer, settings["kind"] == ORCH
        given = {**writer.client.settings, **settings} if is_orch else dict(settings)
        store = open_backend(given, Path(gettempdir()), writer.names, create=False)
        writer.resources.callback(store.close)
        kind = PermittedHistory if isinstance(store, KeepsHistory) else PermittedBackend
        backend = cast(Backend, kind(store, writer.permit))
        client = cast("Any", PermittedClient(getattr(store, "client", writer.client), writer.permit))
        return Place(backend, writer.names, client, pods_are_endpoints=is_orch, wired_networks=frozenset(self.known.wired))


@contextmanager
def looking_again() -> Iterator[None]:
    """Raise Changed for a write of the block that found another state or had no answer, Blocked for another failure."""
    try:
        yield
    except (Conflict, NotFound) as error:
        raise Changed(error.msg) from error
    except StoreError as error:
        if getattr(error, "maybe_applied", False):
            raise Changed(error.msg) from error
        raise
    except CallerError as error:
        raise Blocked([error.msg], details=error.details) from error
