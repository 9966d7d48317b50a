"""Documents of several kinds, in files, folders and standard input."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from svc.admin import manifest
from svc.admin.changes import Wanted, applied
from svc.admin.kind import Kind
from svc.admin.kinds import of_manifest
from svc.model.errors import CallerError, Code
from svc.model.field_errors import FieldErrors, json_kind
from svc.model.object_metadata import ApiGroup
from svc.names import Names
from svc.netconf.networklist import read_file
from svc.values import dataclass

Json = dict[str, Any]
Given = tuple[list[Wanted], list[str]]
"""The objects of documents without errors, and every error."""

SUFFIXES: Final = (".yaml", ".yml", ".json")  # of the files of a folder that are read
STDIN: Final = "-"
_ITEMS: Final = "objects with a kind each"
_IGNORED: Final = (
    "generateName",
    "selfLink",
    "finalizers",
    "ownerReferences",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file as it is written. `place` within the file opens its errors; `node` is the parsed YAML."""

    source: str
    place: str
    content: Any
    node: Any

    @property
    def title(self) -> str:
        """Return file and place, for errors."""
        return f"{self.source}: {self.place}"

    @property
    def kind(self) -> str:
        return str(self.content.get("kind") or "") if isinstance(self.content, dict) else ""

    @property
    def api_version(self) -> str:
        return str(self.content.get("apiVersion") or "") if isinstance(self.content, dict) else ""


def sources(paths: Sequence[str], read_stdin: Callable[[], bytes], *, recursive: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file; those of a folder in the order of their names. Raise CallerError."""
    if paths.count(STDIN) > 1:
        raise CallerError("standard input is given twice", details="give - once")
    for given in paths:
        path = Path(given)
        if given == STDIN:
            yield "<stdin>", read_stdin()
        elif path.is_dir():
            yield from ((str(file), read_file(file)) for file in _files_of(path, recursive=recursive))
        else:
            yield given, read_file(path)


def _files_of(folder: Path, *, recursive: bool) -> list[Path]:
    found = sorted(path for path in folder.glob("**/*" if recursive else "*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        listed = ", ".join(SUFFIXES)
        raise CallerError(
            f"folder {str(folder)!r} has no document", details=f"give one with files {listed}, or --recursive for its folders"
        )
    return found


def read(files: Sequence[tuple[str, bytes]], known: Sequence[Kind], names: Names, namespace: str = "") -> Given:
    """Return the objects of the files, and every error. Raise CallerError if they have no document.

    Objects of namespaced kinds that name no namespace get `namespace`."""
    wanted: list[Wanted] = []
    problems: list[str] = []
    count = 0
    for source, data in files:
        errors = FieldErrors(source, Code.DECODING_FAILURE)
        try:
            nodes = list(_nodes(data, f"{source}: ", errors))
        except CallerError as error:
            problems.append(str(error))
            continue
        count += len(nodes)
        reader = _Reader(known, names, namespace, errors)
        wanted += [found for place, node in nodes if (found := reader.read(place, node))]
        problems += [each.line for each in errors.found]
    if not count and not problems:
        raise _without_document(files)
    return wanted, problems


def read_raw(files: Sequence[tuple[str, bytes]]) -> list[Document]:
    """Return the documents of the files as they are. Raise CallerError if a file is neither YAML nor JSON, or has none."""
    found = []
    for source, data in files:
        errors = FieldErrors(source, Code.DECODING_FAILURE)
        for place, node in _nodes(data, "", errors):
            found.append(Document(source, _opening(place), manifest.value_of(node), node))
        errors.raise_if_any()
    if not found:
        raise _without_document(files)
    return found


def _without_document(files: Sequence[tuple[str, bytes]]) -> CallerError:
    message = f"{', '.join(source for source, _ in files)}: no document"
    return CallerError(message, details="give at least one", code=Code.DECODING_FAILURE)


def _opening(place: str) -> str:
    """Return the place of an item as the opening of an error about the whole item."""
    return f"{place.removesuffix('.')}: " if place.endswith(".") else place


def _nodes(data: bytes, opening: str, errors: FieldErrors) -> Iterator[tuple[str, Any]]:
    """Yield each object of a file, with the text that opens its errors."""
    for number, node in manifest.parse(data, errors.subject):
        yield from manifest.listed(node, _ITEMS, f"{opening}document {number}: ", errors)


class _Reader:
    """Reads the objects of one file, and reports their errors."""

    def __init__(self, known: Sequence[Kind], names: Names, namespace: str, errors: FieldErrors) -> None:
        self._known = known
        self._names = names
        self._namespace = namespace
        self._errors = errors

    def read(self, place: str, node: Any) -> Wanted | None:
        """Return the object; None if it has an error."""
        before, document = len(self._errors.found), manifest.value_of(node)
        if not isinstance(document, dict):
            where = place.removesuffix(".") if place.endswith(".") else f"{place}document"
            self._errors.add(
                where, document, f"is {json_kind(document)}", "give an object with apiVersion, kind, metadata and spec"
            )
            return None
        kind = self._kind(place, document)
        if kind is None or not self._is_version_known(place, document, kind):
            return None
        manifest.check_quotes(place, node, kind.texts, self._errors)
        wanted = self._wanted(place, document, kind)
        return wanted if len(self._errors.found) == before else None

    def _kind(self, place: str, document: Json) -> Kind | None:
        listed = f"give one of {', '.join(kind.name for kind in self._known if kind.is_writable)}"
        if "kind" not in document:
            self._errors.missing(f"{place}kind", listed)
            return None
        found = of_manifest(self._known, str(document["kind"]))
        if found is None:
            self._errors.add(f"{place}kind", document["kind"], "is not known", listed)
        return found

    def _is_version_known(self, place: str, document: Json, kind: Kind) -> bool:
        own = (kind.api_version,) if kind.api_version else (self._names.api_version, self._names.crd_api_version)
        given = document.get("apiVersion")
        if given in own:
            return True
        if "apiVersion" not in document:
            self._errors.missing(f"{place}apiVersion", f"give {own[0]}")
        else:
            remedy = (
                f"give {' or '.join(own)}; `svcctl convert` changes the API group of documents, and --names chooses another"
            )
            self._errors.add(f"{place}apiVersion", given, "is not the group of these names", remedy)
        return False

    def _wanted(self, place: str, document: Json, kind: Kind) -> Wanted | None:
        metadata = document.get("metadata")
        if document["apiVersion"] == self._names.crd_api_version and isinstance(metadata, dict):
            document = document | {"metadata": self._unwrapped(place, metadata)}
        more = ("namespace",) if kind.is_namespaced else ()
        resource = manifest.resource_of(place, document, kind.name, self._errors, more, _IGNORED)
        if kind.is_namespaced and self._namespace:
            resource.metadata.setdefault("namespace", self._namespace)
        if kind.singleton:
            resource.metadata.setdefault("name", kind.singleton)
        revision = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        return applied(kind, resource, _opening(place), str(revision or ""))

    def _unwrapped(self, place: str, metadata: Json) -> Json:
        """Return the metadata of an object of the backing group, which has most of it in an annotation."""
        try:
            found = ApiGroup(self._names, self._names.crd_api_version).unwrap(metadata)
        except (ValueError, TypeError, AttributeError) as error:
            annotation = self._names.metadata_annotation
            self._errors.add(f"{place}metadata", metadata, f"cannot be read ({error})", f"leave annotation {annotation} out")
            return {}
        return found
