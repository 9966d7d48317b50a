"""The software bill of materials of the wheels, in the JSON form of CycloneDX 1.6.

Equal inputs give equal bytes: the date is that of the sources, the serial number follows from the content.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker

from wheels.compiling import zig_folder
from wheels.licenses import MUSL, OF_DISTRIBUTIONS, OF_TOOLS
from wheels.locks import Locked, read_lock, without
from wheels.targets import MACHINES, PYTHONS

Json = dict[str, Any]

SPECIFICATION: Final = "1.6"
EXTRAS: Final = ("etcd", "orch", "routes")
_INDEX: Final = "https://pypi.org/project"
_PROPERTY: Final = "svc"
_MUSL_VERSION: Final = re.compile(r'VERSION "([^"]+)"')


def add_sbom(information: str, folder: Path, epoch: int) -> bool:
    """Write the document of the wheels in a folder, whose metadata is in folders of a name. Return whether it is valid."""
    version = information.removesuffix(".dist-info").rpartition("-")[2]
    files = [*folder.glob(f"svc_cni-{version}-*.whl"), *folder.glob(f"svc_cni-{version}.tar.gz")]
    path = write_sbom(version, files, folder, epoch)
    found = list(problems(path))
    print("\n".join([f"{path.name}: {each}" for each in found] or [f"{path.name}: {len(files)} files"]), flush=True)
    return not found


def write_sbom(version: str, files: Sequence[Path], folder: Path, epoch: int) -> Path:
    """Write the document of a release, whose wheels and sdist are `files`. Return its path. Raise Unavailable."""
    path = folder / f"svc_cni-{version}.cdx.json"
    path.write_text(json.dumps(document(version, files, epoch, musl_version()), indent=2) + "\n")
    return path


def problems(path: Path) -> Iterator[str]:
    """Yield what is wrong with a document, by the schema of CycloneDX."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if failure := JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text()):
        yield str(failure)


def document(version: str, files: Sequence[Path], epoch: int, musl: str) -> Json:
    """Return the document. `musl` is the version of the C library in the executable."""
    runtime = [_component(each, extras) for each, extras in _runtime()]
    library = _musl(musl)
    own = _own(version, files)
    found: Json = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
            "lifecycles": [{"phase": "build"}],
            "component": own,
        },
        "components": [*runtime, library],
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in (*runtime, library)]},
            *({"ref": each["bom-ref"]} for each in (*runtime, library)),
        ],
        "formulation": [{"bom-ref": "build", "components": [_tool(each) for each in _tools()]}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(found, sort_keys=True))
    return {**found, "serialNumber": serial.urn}


def musl_version() -> str:
    """Return the version of the C library that zig links. Raise Unavailable if zig is not installed."""
    found = _MUSL_VERSION.search((zig_folder() / "lib/libc/musl/src/internal/version.h").read_text())
    assert found, "the C library of zig has no version"
    return found[1]


def _runtime() -> Iterator[tuple[Locked, tuple[str, ...]]]:
    """Yield what a node may have, with the extras that bring it; none for what every node has."""
    base = [each for each in read_lock("node.txt") if _is_for_nodes(each)]
    yield from ((each, ()) for each in base)
    brought: dict[tuple[str, str], tuple[Locked, tuple[str, ...]]] = {}
    for extra in EXTRAS:
        for each in without(read_lock(f"node-{extra}.txt"), base):
            if _is_for_nodes(each):
                known, extras = brought.get((each.name, each.version), (each, ()))
                brought[each.name, each.version] = (known if not known.marker else each), (*extras, extra)
    yield from (brought[key] for key in sorted(brought))


def _is_for_nodes(locked: Locked) -> bool:
    """Return whether a distribution is for one of the targets of wheels, and not only for another system."""
    if not locked.marker:
        return True
    marker = Marker(locked.marker)
    common = {"sys_platform": "linux", "platform_system": "Linux", "platform_python_implementation": "CPython"}
    return any(
        marker.evaluate({**common, "python_version": python, "python_full_version": f"{python}.9", "platform_machine": machine})
        for python, machine in product(PYTHONS, MACHINES)
    )


def _component(locked: Locked, extras: Sequence[str]) -> Json:
    properties = [{"name": f"{_PROPERTY}:extra", "value": extra} for extra in extras]
    properties += [{"name": f"{_PROPERTY}:marker", "value": locked.marker}] if locked.marker else []
    return {
        **_distribution(locked, "library", OF_DISTRIBUTIONS[locked.name]),
        "scope": "optional" if extras else "required",
        **({"properties": properties} if properties else {}),
    }


def _tools() -> Iterator[Locked]:
    yield from (each for each in read_lock("wheels.txt") if each.name in OF_TOOLS)


def _tool(locked: Locked) -> Json:
    return _distribution(locked, "application", OF_TOOLS[locked.name])


def _distribution(locked: Locked, kind: str, license_expression: str) -> Json:
    """Return what an index has of a distribution. Its hashes are those of all its files, as in the lock file."""
    purl = f"pkg:pypi/{locked.name}@{locked.version}"
    return {
        "type": kind,
        "bom-ref": purl,
        "name": locked.name,
        "version": locked.version,
        "licenses": [{"expression": license_expression}],
        "purl": purl,
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"{_INDEX}/{locked.name}/{locked.version}/#files",
                "hashes": [{"alg": "SHA-256", "content": each} for each in locked.hashes],
            }
        ],
    }


def _musl(version: str) -> Json:
    purl = f"pkg:generic/musl@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": "musl",
        "version": version,
        "description": "C library, linked statically into the executables svc and svc-ipam",
        "licenses": [{"expression": MUSL}],
        "purl": purl,
        "scope": "required",
        "externalReferences": [{"type": "website", "url": "https://musl.libc.org"}],
    }


def _own(version: str, files: Sequence[Path]) -> Json:
    purl = f"pkg:pypi/svc-cni@{version}"
    return {
        "type": "application",
        "bom-ref": purl,
        "name": "svc-cni",
        "version": version,
        "licenses": [{"expression": "Apache-2.0"}],
        "purl": purl,
        "components": [_file(path) for path in sorted(files, key=lambda each: each.name)],
    }


def _file(path: Path) -> Json:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "type": "file",
        "bom-ref": path.name,
        "name": path.name,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
