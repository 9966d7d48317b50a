"""Global options of svcctl: directories, datastore and output format.

The datastore is the one that the user names, else the one of the installed networks of this node. In this order: `--embedded`,
`--netconf`, `$SVC_NETCONF`, the network lists that `svcctl install` recorded in the state directory, a network list in the
runtime's directory (only with the default state directory, because others belong to other agents), and the embedded store of
the state directory.
"""

import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from svc.ctl.file_completion import complete_profiles
from svc.ctl.terminal import echo, visible
from svc.datastore import api
from svc.datastore.api import Backend
from svc.datastore.open import EMBEDDED_FILE, open_backend
from svc.model.errors import CallerError
from svc.model.field_errors import without_secrets_in_urls
from svc.model.resource import Resource
from svc.names import DEFAULT, Names
from svc.netconf.installed import InstalledNetwork, read_installed, read_networks
from svc.netconf.names_profiles import DEFAULT_NAME, load_profile
from svc.netconf.netconf import NetConf
from svc.netconf.networklist import check_file, find_lists, read_netconf
from svc.netconf.node_files import node_name
from svc.values import dataclass, replace

if TYPE_CHECKING:
    from svc.admin.kind import Column

FORMATS: Final = ("table", "json", "yaml")
NETWORKS: Final = Path("/etc/cni/net.d")
_EMBEDDED: Final = {"kind": "embedded"}


@dataclass(frozen=True, slots=True)
class Target:
    """A datastore's settings, the names in it, and the network configuration that they come from, if any."""

    names: Names
    settings: dict[str, str]
    state_dir: Path
    netconf: NetConf | None = None
    origin: str = ""

    @property
    def is_embedded(self) -> bool:
        return self.settings["kind"] == "embedded"

    @property
    def is_missing(self) -> bool:
        """Whether this is an embedded store that does not exist."""
        return self.is_embedded and not self.file.exists()

    @property
    def file(self) -> Path:
        """The file of an embedded store."""
        return self.state_dir / EMBEDDED_FILE

    def __str__(self) -> str:
        """Describe the datastore without credentials."""
        return f"{describe(self.settings, self.file)}{f', from {self.origin}' if self.origin else ''}"


def rehearse(target: Target, step: Callable[[Backend], object]) -> None:
    """Take a step in a draft if the embedded store does not exist, so that a refused step makes no store."""
    if target.is_missing:
        with open_draft(target) as draft:
            step(draft)


@contextmanager
def open_draft(target: Target) -> Iterator[Backend]:
    """Open an empty store in a temporary directory."""
    from tempfile import TemporaryDirectory  # not needed by most commands

    with TemporaryDirectory() as folder, closing(open_backend(target.settings, Path(folder), target.names)) as draft:
        yield draft


@dataclass(frozen=True, slots=True)
class CliContext:
    """The global options. `profile` is the names profile's name or path, `netconf` the file that names the datastore."""

    state_dir: Path
    run_dir: Path
    output: str = FORMATS[0]
    profile: str = ""
    netconf: Path | None = None
    embedded: bool = False
    allow_version_mismatch: bool = False

    def __post_init__(self) -> None:
        if self.embedded and self.netconf:
            raise click.UsageError("--embedded and --netconf exclude each other: give one of them")

    @property
    def names(self) -> Names:
        """Return the names that the user chose, else the installed ones. Raise CallerError if several are installed."""
        if self.profile or self._named_netconf(DEFAULT)[0]:
            return load_profile(self.profile)
        profiles = list(dict.fromkeys(entry.profile for entry in read_installed(self.state_dir)))
        if len(profiles) > 1:
            listed = ", ".join(profile or DEFAULT_NAME for profile in profiles)
            raise CallerError(f"several names profiles are installed: {listed}", details="choose one with --names")
        return load_profile(profiles[0] if profiles else "")

    @property
    def target(self) -> Target:
        """Return the datastore to work on. Raise CallerError if a file is invalid, or if several datastores qualify."""
        names = self.names
        if self.embedded:
            return Target(names, _EMBEDDED, self.state_dir, origin="--embedded")
        path, origin = self._named_netconf(names)
        if path:
            try:
                check_file(path)
            except CallerError as error:
                error.details += f" ({origin})" if origin != str(path) else ""
                raise
            return self._target_of(InstalledNetwork(path, "", names, read_netconf(path, names)), origin)
        networks = self._networks(names)
        if any(network.netconf.datastore != networks[0].netconf.datastore for network in networks):
            listed = ", ".join(str(network.path) for network in networks)
            raise CallerError(f"the networks of this node have several datastores: {listed}", details="name one with --netconf")
        return self._target_of(networks[0], str(networks[0].path)) if networks else Target(names, _EMBEDDED, self.state_dir)

    @property
    def with_own_names(self) -> "CliContext":
        """Return the context with the names of svc if the user chose none, also if others are installed."""
        return replace(self, profile=self.profile or DEFAULT_NAME)

    @property
    def without_version_check(self) -> "CliContext":
        """Return the context for what must work on a cluster of another version, too."""
        return replace(self, allow_version_mismatch=True)

    def open_store(self, settings: dict[str, str], names: Names, *, create: bool = True, right_remedy: str = "") -> Backend:
        """Open a datastore as `open_backend` does. Raise CallerError also if the cluster is of another version."""
        store = open_backend(settings, self.state_dir, names, create=create, right_remedy=right_remedy)
        try:
            if not self.allow_version_mismatch:
                from svc.admin.version_check import require_same_version  # `install` does not need it

                require_same_version(store, names)
        except BaseException:
            store.close()
            raise
        return store

    def open_present(self, settings: dict[str, str], names: Names) -> Backend:
        """Open a datastore as `open_store` does, and make none."""
        return self.open_store(settings, names, create=False)

    @contextmanager
    def store(self, target: Target | None = None, *, create: bool = False) -> Iterator[Backend]:
        """Open the datastore; with `create`, make a missing embedded one.

        Raise CallerError if it is missing or of another version, StoreError."""
        target = target or self.target
        self.require_store(target, create=create)
        with closing(self.open_store(target.settings, target.names)) as store:
            yield store

    def require_store(self, target: Target, *, create: bool) -> None:
        """Raise CallerError if the datastore is a missing embedded store, and, with `create`, cannot be made either."""
        # a directory that does not exist is mistyped: `svcctl install` and the agent make the others
        can_create = create and (self.state_dir.is_dir() or self.state_dir == Path(DEFAULT.state_dir))
        if target.is_embedded and self.state_dir.exists() and not self.state_dir.is_dir():
            msg = f"state directory {str(self.state_dir)!r} is not a directory"
            raise CallerError(msg, details="name the agent's directory with --state-dir")
        if target.is_embedded and not (can_create or target.file.exists()):
            raise CallerError(
                f"the embedded store {target.file} does not exist{f' (from {target.origin})' if target.origin else ''}",
                details="name the agent's directory with --state-dir, or the datastore with --netconf; `svcctl pool apply` "
                "makes a new store in a directory that exists",
            )

    @contextmanager
    def changing(self, *, create: bool = False, apart: bool = False) -> Iterator[Backend]:
        """Open the datastore as `store` does, and print its name after the change; with `apart`, on stderr."""
        target = self.target
        with self.store(target, create=create) as store:
            yield store
        echo(f"datastore: {target}", err=apart)

    def show(self, resources: Sequence[Resource], columns: "Sequence[Column]", errors: Mapping[str, str] | None = None) -> None:
        """Print resources in a form that `apply -f` reads again, and `errors` by name: in the table, else on stderr."""
        errors = errors or {}
        documents = [resource.to_json(self.names.api_version) for resource in resources]
        rows = [[*(cell(item) for _, cell in columns), errors.get(item.name, "")] for item in resources]
        hidden = errors.keys() - {item.name for item in resources}
        rows += [[name, *("" for _ in columns[1:]), errors[name]] for name in sorted(hidden)]
        self.answer(documents, table([*(heading for heading, _ in columns), "ERROR" if errors else ""], rows))
        if self.output != FORMATS[0]:
            for error in errors.values():
                echo(f"warning: {error}", err=True)

    def answer(self, documents: Sequence[dict[str, Any]], text: str) -> None:
        """Print the text, or the same as documents for programs."""
        if self.output == "json":
            echo_json(documents)
        elif self.output == "yaml":
            echo_yaml(documents)
        else:
            echo(text)

    def _named_netconf(self, names: Names) -> tuple[Path | None, str]:
        """Return the file that the user names, and how."""
        if self.netconf:
            return self.netconf, str(self.netconf)
        for variable in dict.fromkeys(f"{prefix}NETCONF" for prefix in (names.environment_prefix, DEFAULT.environment_prefix)):
            if path := os.environ.get(variable):
                return Path(path), f"{path}, which ${variable} names"
        return None, ""

    def _networks(self, names: Names) -> list[InstalledNetwork]:
        """Return the networks with these names that are recorded in the state directory, else those in the runtime's."""
        networks, errors = read_networks(self.state_dir)
        if errors:
            first, msg = errors[0], "an installed network cannot be used"
            remedy = "repeat `svcctl install --bin-dir DIR --conf-dir DIR`, or give --netconf"
            error = CallerError(f"{msg}: {first.msg}", details=f"{first.details}; or {remedy}", code=first.code)
            if len(first.errors) > 1:
                error.subject, error.errors = f"{msg} ({remedy}): {first.subject}", first.errors
            raise error
        found = [network for network in networks if network.names == names]
        if found or self.state_dir != Path(DEFAULT.state_dir):
            return found
        return [InstalledNetwork(path, "", names, read_netconf(path, names)) for path in find_lists(NETWORKS, names)]

    def _target_of(self, network: InstalledNetwork, origin: str) -> Target:
        return Target(network.names, network.netconf.datastore.to_json(), self.state_dir, network.netconf, origin)


def own_node(target: Target) -> str:
    """Return the name of this node in the datastore; empty if no network names it."""
    return node_name(target.netconf, target.names, socket.gethostname(), lenient=True) if target.netconf else ""


@contextmanager
def listed_errors(*plurals: str) -> Iterator[None]:
    """Log no document of these kinds that cannot be decoded, because the answer lists it."""
    logger, places = logging.getLogger(api.__name__), [f"/{plural}/" for plural in plurals]

    def is_other(record: logging.LogRecord) -> bool:
        return not any(place in record.getMessage() for place in places)

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def describe(settings: dict[str, str], file: Path) -> str:
    """Name a datastore without credentials; `file` is that of an embedded one."""
    match settings["kind"]:
        case "embedded":
            return f"embedded store {file}"
        case "etcdv3":
            return f"etcd {_servers(settings)}"
    if root := settings.get("orch_api_root"):
        return f"Kubernetes API {without_secrets_in_urls(root)}"
    kubeconfig = settings.get("kubeconfig")
    return f"Kubernetes API of kubeconfig {kubeconfig}" if kubeconfig else "Kubernetes API of this pod's service account"


def _servers(settings: dict[str, str]) -> str:
    if domain := settings.get("etcd_discovery_srv"):
        return f"by the SRV records of {domain}"
    deprecated = f"{settings.get('etcd_scheme', 'http')}://{settings.get('etcd_authority', '127.0.0.1:2379')}"
    return without_secrets_in_urls(settings.get("etcd_endpoints") or deprecated)


def _overriding(field: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    """Return the callback of a command's option that overrides a global one."""

    def override(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value:
            context.obj = replace(context.obj, **{field: value})

    return override


output_option = click.option("-o", "--output", type=click.Choice(FORMATS), expose_value=False, callback=_overriding("output"))
names_option = click.option(
    "--names",
    metavar="NAME|FILE",
    expose_value=False,
    callback=_overriding("profile"),
    shell_complete=complete_profiles,
    help="Names profile.  [default: svc]",
)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """Return aligned columns, two spaces apart. Align the last `numbers` columns on the right. Each row is one line."""
    lines = [headings, *([visible(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    aligned = [str.ljust] * (len(widths) - numbers) + [str.rjust] * numbers
    cells = [[align(cell, width) for align, cell, width in zip(aligned, line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def echo_json(document: Any, indent: int | None = 2) -> None:
    """Print a document as JSON; in ASCII if the output has not UTF-8."""
    is_unicode = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    text = json.dumps(document, indent=indent, ensure_ascii=not is_unicode)  # a network may have more than 2**64 addresses
    click.echo(text)


def echo_yaml(documents: Sequence[Any]) -> None:
    """Print documents as YAML."""
    import yaml  # takes 18 ms

    click.echo(yaml.safe_dump_all(documents, sort_keys=False, explicit_start=len(documents) > 1), nl=False)
