"""The software bill of materials beside the wheels."""

import hashlib
import json
import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import pytest

from harness.wheel_scripts import wheels

__all__ = ["wheels"]
OF_NODES = ("node.txt", "node-etcd.txt", "node-orch.txt", "node-routes.txt")
EPOCH = 1_700_000_000
OF_CLASSIFIERS = {"MIT": "MIT", "Apache": "Apache-2.0", "BSD": "BSD", "ISC": "ISC", "Mozilla": "MPL-2.0", "Python": "PSF-2.0"}


@pytest.fixture
def sbom(wheels: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = wheels("sbom")
    monkeypatch.setattr(module, "musl_version", lambda: "1.2.5")  # the compiler is not among the tools of tests
    return module


def written(sbom: Any, folder: Path) -> Path:
    folder.mkdir()
    wheel = folder / "svc_cni-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"
    wheel.write_bytes(b"wheel")
    path: Path = sbom.write_sbom("1.0", [wheel], folder, EPOCH)
    return path


def components(sbom: Any, folder: Path) -> dict[str, Any]:
    document = json.loads(written(sbom, folder).read_text())
    return {each["bom-ref"]: each for each in document["components"]}


def test_document_fits_the_schema(sbom: Any, tmp_path: Path) -> None:
    path = written(sbom, tmp_path / "a")
    assert list(sbom.problems(path)) == []
    path.write_text(path.read_text().replace('"specVersion": "1.6"', '"specVersion": 1.6'))
    assert list(sbom.problems(path)) != []


def test_equal_inputs_give_equal_bytes(sbom: Any, tmp_path: Path) -> None:
    one, other = written(sbom, tmp_path / "a"), written(sbom, tmp_path / "b")
    assert one.read_bytes() == other.read_bytes()


def test_it_has_the_wheels_with_their_hashes(sbom: Any, tmp_path: Path) -> None:
    document = json.loads(written(sbom, tmp_path / "a").read_text())
    (wheel,) = document["metadata"]["component"]["components"]
    assert wheel["name"] == "svc_cni-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"wheel").hexdigest()}]


def test_it_has_every_locked_distribution_of_a_node(sbom: Any, wheels: Any, tmp_path: Path) -> None:
    found = components(sbom, tmp_path / "a")
    for name in OF_NODES:
        for each in wheels("locks").read_lock(name):
            if "win32" not in each.marker:
                (reference,) = found[f"pkg:pypi/{each.name}@{each.version}"]["externalReferences"]
                assert {hash_["content"] for hash_ in reference["hashes"]} == set(each.hashes)


def test_what_only_extras_bring_is_optional(sbom: Any, tmp_path: Path) -> None:
    scopes = {each["name"]: (each["scope"], each.get("properties")) for each in components(sbom, tmp_path / "a").values()}
    assert scopes["orjson"] == ("required", None)
    assert scopes["musl"] == ("required", None)
    assert scopes["grpcio"] == ("optional", [{"name": "svc:extra", "value": "etcd"}])
    assert [each["value"] for each in scopes["typing-extensions"][1] or ()] == ["etcd", "orch"]


def test_markers_are_those_of_what_only_some_pythons_need(sbom: Any, tmp_path: Path) -> None:
    named = {name for name, each in components(sbom, tmp_path / "a").items() if "svc:marker" in str(each.get("properties"))}
    assert any(name.startswith("pkg:pypi/tomli@") for name in named)
    assert not any(name.startswith("pkg:pypi/six@") for name in named)  # one extra needs it everywhere


def test_compilers_are_tools_of_the_build(sbom: Any, tmp_path: Path) -> None:
    document = json.loads(written(sbom, tmp_path / "a").read_text())
    (build,) = document["formulation"]
    assert {each["name"] for each in build["components"]} == {"cmake", "cython", "ninja", "scikit-build-core", "ziglang"}


def test_lock_files_are_read_whole(wheels: Any) -> None:
    locks = wheels("locks")
    for path in locks.LOCKS.glob("*.txt"):
        assert "".join(each.text for each in locks.read_lock(path.name)) == path.read_text()


def test_licences_are_those_of_locked_distributions(wheels: Any) -> None:
    """None is missing and none is left over, and installed ones say the same of themselves."""
    licenses, read_lock = wheels("licenses"), wheels("locks").read_lock
    locked = {each.name for name in OF_NODES for each in read_lock(name)}
    assert set(licenses.OF_DISTRIBUTIONS) == locked - {"win-inet-pton"}  # for another system
    assert set(licenses.OF_TOOLS) <= {each.name for each in read_lock("wheels.txt")}
    contradictions = {name: contradiction(name, expression) for name, expression in licenses.OF_DISTRIBUTIONS.items()}
    assert {name: found for name, found in contradictions.items() if found} == {}


def contradiction(name: str, expression: str) -> str:
    """Return what an installed distribution says of its licence, if it is another one."""
    try:
        known = metadata(name)
    except PackageNotFoundError:
        return ""
    if known["License-Expression"]:
        return "" if known["License-Expression"] == expression else str(known["License-Expression"])
    if known["License"] == expression:
        return ""
    classifiers = [each for each in known.get_all("Classifier") or () if each.startswith("License :: OSI Approved :: ")]
    words = {word for each in classifiers for word in re.findall(r"\w+", each.rpartition(":")[2])}
    named = {value for word, value in OF_CLASSIFIERS.items() if word in words}
    return "" if all(value in expression for value in named) else "; ".join(classifiers)
