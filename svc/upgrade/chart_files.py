"""Charts that a user names: a folder, or an archive that helm has packed."""

import hashlib
import json
import lzma
import re
import tarfile
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from svc.admin.documents import read_raw
from svc.model.errors import CallerError, Code, reason_of
from svc.model.field_errors import Written
from svc.netconf.networklist import read_file
from svc.values import dataclass

Json = dict[str, Any]

MAX_BYTES: Final = 20_000_000  # of all files of a chart
_ABOUT, _IGNORED, _TEMPLATES = "Chart.yaml", ".helmignore", "templates/"
_HIDDEN: Final = f"{_TEMPLATES}."  # helm leaves them out of a folder
_BLANK: Final = re.compile(r"(---)?\s*(#.*)?")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. `is_complete` is false if helm may leave out some of its files. `digest` is that of all files."""

    path: str
    name: str
    version: str
    app_version: str
    templates: Mapping[str, str]
    is_complete: bool
    digest: str

    def made(self, stored: Json) -> bool:
        """Return whether a release was made from this chart, as its record says."""
        about = stored.get("metadata") or {}
        if (about.get("name"), about.get("version"), str(about.get("appVersion") or "")) != (
            self.name, self.version, self.app_version,
        ):  # fmt: skip
            return False
        found = {each["name"]: each["data"] for each in stored.get("templates") or ()}
        own = self.templates if self.is_complete else {name: self.templates.get(name) for name in found}
        return found == own

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def read_chart(place: str) -> Chart:
    """Return the chart of a folder or an archive. Raise CallerError."""
    path = Path(place)
    try:
        files = dict(_of_folder(path) if path.is_dir() else _of_archive(path))
    except (OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        details = "name a folder with a chart, or a file of `helm package`"
        raise CallerError(f"--chart {place}: {reason_of(error)}", details=details, code=Code.IO_FAILURE) from error
    if _ABOUT not in files:
        raise CallerError(f"--chart {place} has no {_ABOUT}", details="name the folder of a chart, or its archive")
    about = _only(f"{place}/{_ABOUT}", files[_ABOUT])
    total = hashlib.sha256()
    for name, data in sorted(files.items()):
        total.update(f"{name} {len(data)}\n".encode(errors="surrogateescape") + data)
    return Chart(
        place,
        str(about.get("name") or ""),
        str(about.get("version") or ""),
        str(about.get("appVersion") or ""),
        {name: b64encode(data).decode() for name, data in files.items() if name.startswith(_TEMPLATES)},
        _IGNORED not in files,
        total.hexdigest(),
    )


def read_values(place: str) -> tuple[Json, str]:
    """Return the values of a file, and the digest of the file. Raise CallerError."""
    data = read_file(Path(place))
    values = {} if is_blank(data.decode(errors="replace")) else as_json(_only(place, data))
    return values, hashlib.sha256(data).hexdigest()


def is_blank(text: str) -> bool:
    """Return whether a text of YAML has no document: nothing but comments and marks."""
    return all(_BLANK.fullmatch(line) for line in text.splitlines())


def as_json(value: Any) -> Any:
    """Return a value of YAML as helm keeps it: keys are text, and dates are as written."""
    if isinstance(value, dict):
        return {_key(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    return value.text if isinstance(value, Written) else value


def _key(key: Any) -> str:
    text = as_json(key)
    return text if isinstance(text, str) else json.dumps(text)


def _only(place: str, data: bytes) -> Json:
    found = [each.content for each in read_raw([(place, data)])]
    if len(found) != 1 or not isinstance(found[0], dict):
        raise CallerError(f"{place} is not one object of YAML", details="correct the file", code=Code.DECODING_FAILURE)
    return found[0]


def _of_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    size = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or name.startswith(_HIDDEN):
            continue
        size += path.stat().st_size
        _require_small(folder, size)
        yield name, path.read_bytes()


def _of_archive(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files below the only folder of an archive."""
    size = 0
    with tarfile.open(file) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            size += member.size
            _require_small(file, size)
            yield PurePosixPath(*PurePosixPath(member.name).parts[1:]).as_posix(), content.read()


def _require_small(place: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise CallerError(f"--chart {place} has more than {MAX_BYTES} bytes", details="name the folder of a chart")
