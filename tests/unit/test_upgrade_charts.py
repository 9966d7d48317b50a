"""Charts, runs of helm, and marks of releases, without a cluster."""

import bz2
import contextlib
import gzip
import lzma
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from svc.model.errors import CallerError
from svc.upgrade.chart_files import read_chart, read_values
from svc.upgrade.helm import Helm, HelmFailed, shown
from svc.upgrade.outcomes import Blocked
from svc.upgrade.releases import documents_of

_WAIT_SECONDS = 20


def make_chart(folder: Path, text: str = "kind: ConfigMap\n") -> Path:
    chart = folder / "one"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("name: one\nversion: 1.2.3\nappVersion: 4.5.6\n")
    (chart / "templates" / "a.yaml").write_text(text)
    return chart


def program(folder: Path, body: str) -> str:
    file = folder / "helm"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


def test_folder_and_archive_are_the_same_chart(tmp_path: Path) -> None:
    folder = make_chart(tmp_path)
    archive = tmp_path / "one.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, "one")
    first, second = read_chart(str(folder)), read_chart(str(archive))
    assert (first.digest, first.templates, str(first)) == (second.digest, second.templates, "one 1.2.3")
    stored = {
        "metadata": {"name": "one", "version": "1.2.3", "appVersion": "4.5.6"},
        "templates": [{"name": name, "data": data} for name, data in first.templates.items()],
    }
    assert first.made(stored)
    assert not first.made(stored | {"templates": []})
    assert not first.made(stored | {"metadata": {"name": "one", "version": "1.2.4"}})


def test_chart_with_ignored_files(tmp_path: Path) -> None:
    """helm may have left out templates; those that it has kept count."""
    folder = make_chart(tmp_path)
    stored = {
        "metadata": {"name": "one", "version": "1.2.3", "appVersion": "4.5.6"},
        "templates": [{"name": name, "data": data} for name, data in read_chart(str(folder)).templates.items()],
    }
    (folder / "templates" / "b.yaml~").write_text("")
    assert not read_chart(str(folder)).made(stored)
    (folder / ".helmignore").write_text("*~\n")
    assert read_chart(str(folder)).made(stored)


def test_hidden_templates_of_a_folder(tmp_path: Path) -> None:
    """helm leaves them out."""
    folder = make_chart(tmp_path)
    (folder / "templates" / ".a.yaml.swp").write_text("")
    assert list(read_chart(str(folder)).templates) == ["templates/a.yaml"]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_archive_with_damaged_content(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    folder, file = make_chart(tmp_path), tmp_path / "one.tgz"
    (folder / "big").write_bytes(random.Random(1).randbytes(100_000))
    with tarfile.open(file, "w") as archive:
        archive.add(folder, "one")
    data = bytearray(compress(file.read_bytes()))
    for position in range(2_000, len(data), 5_000):
        data[position] ^= 0xFF
    file.write_bytes(data)
    with contextlib.suppress(CallerError):  # some damage does not show
        read_chart(str(file))


@pytest.mark.parametrize("content", [None, b"no archive", b""])
def test_file_that_is_no_chart(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "chart.tgz"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CallerError, match=f"--chart {file}"):
        read_chart(str(file))


def test_folder_without_a_description(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=r"has no Chart\.yaml"):
        read_chart(str(tmp_path))


def test_values(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("")
    assert read_values(str(file))[0] == {}
    file.write_text("a: 1\n")
    assert read_values(str(file))[0] == {"a": 1}
    file.write_text("- a\n")
    with pytest.raises(CallerError, match="is not one object"):
        read_values(str(file))


def test_values_without_any(tmp_path: Path) -> None:
    """Files that charts come with often have nothing but comments."""
    file = tmp_path / "values.yaml"
    file.write_text("# image: svc\n\n  # more\n--- # end\n")
    assert read_values(str(file))[0] == {}
    file.write_text("--- {a: 1}\n")
    assert read_values(str(file))[0] == {"a": 1}


def test_values_are_as_helm_keeps_them(tmp_path: Path) -> None:
    """In JSON, where keys are text and dates are not known; else a release would never have them."""
    file = tmp_path / "values.yaml"
    file.write_text("80: a\ntrue: [2026-01-02]\n2026-01-02: {null: b}\n")
    values, _ = read_values(str(file))
    assert values == {"80": "a", "true": ["2026-01-02"], "2026-01-02": {"null": "b"}}
    helm = Helm(program(tmp_path, 'while [ "$1" != -f ]; do shift; done; cat "$2"'), "config")
    assert read_values_of(helm.render("one", "chart", "space", values, ()), file) == values


def read_values_of(text: str, file: Path) -> object:
    file.write_text(text)
    return read_values(str(file))[0]


@pytest.mark.parametrize(("text", "count"), [("", 0), ("# nothing\n---\n", 0), ("---\nkind: A\n---\nkind: B\n", 2)])
def test_objects_of_a_manifest(text: str, count: int) -> None:
    assert len(documents_of(text)) == count


def test_error_of_helm(tmp_path: Path) -> None:
    """The last line says why. The user's choices of cluster and namespace do not reach helm."""
    helm = Helm(program(tmp_path, 'echo "first" >&2; echo "Error: $HELM_DRIVER$HELM_NAMESPACE" >&2; exit 1'))
    with pytest.raises(HelmFailed, match=r"^secret$"):
        helm.roll_back("one", 1, "space", allow)


def test_values_reach_helm(tmp_path: Path) -> None:
    helm = Helm(program(tmp_path, 'while [ "$1" != -f ]; do shift; done; cat "$2"'), "config")
    assert helm.render("one", "chart", "space", {"a": "b"}, ()) == "a: b\n"


def test_command_for_the_user() -> None:
    assert shown("one", "chart", "space", "") == "helm upgrade --install one chart -n space --reuse-values"
    assert shown("one", "chart", "space", "v") == "helm upgrade --install one chart -n space -f v --reset-values"


def test_helm_dies_with_its_parent(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    helm = program(tmp_path, f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60")
    code = f"from svc.upgrade.helm import Helm; Helm({helm!r}).roll_back('one', 1, 'space', lambda: None)"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        until = time.monotonic() + _WAIT_SECONDS
        while not mark.exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
    child = int(mark.read_text())
    while is_running(child):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_helm_does_not_outlive_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may begin then."""
    monkeypatch.setattr("svc.upgrade.helm.POLL_SECONDS", 0.05)
    mark = tmp_path / "pid"
    helm = Helm(program(tmp_path, f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60"))

    def require() -> None:
        if mark.exists():
            raise Blocked(["the Lease is lost"])

    with pytest.raises(Blocked, match="the Lease is lost"):
        helm.upgrade("one", "chart", "space", {}, require)
    assert not is_running(int(mark.read_text()))


def test_helm_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc.upgrade.helm.POLL_SECONDS", 0.05)
    monkeypatch.setattr("svc.upgrade.helm.SECONDS", 0.2)
    helm = Helm(program(tmp_path, "exec sleep 60"))
    with pytest.raises(HelmFailed, match="has not ended"):
        helm.roll_back("one", 1, "space", allow)


def allow() -> None:
    """Let a run write."""


def is_running(pid: int) -> bool:
    """Return whether a process runs. One that nobody has waited for does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
