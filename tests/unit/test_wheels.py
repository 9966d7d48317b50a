"""The matrix of wheels, and how they are put together."""

import argparse
import errno
import importlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a module of the scripts, which are not installed."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield lambda name: importlib.import_module(f"wheels.{name}")
    for name in [each for each in sys.modules if each.partition(".")[0] == "wheels"]:
        del sys.modules[name]


def test_there_is_a_target_for_each_python_library_and_machine(wheels: Any) -> None:
    targets = wheels("targets")
    assert len(targets.ALL) == 20
    assert len({(each.tag, each.platform) for each in targets.ALL}) == 20


def test_tags_of_a_target(wheels: Any) -> None:
    (target,) = wheels("targets").targets_of(["cp312-musllinux-aarch64"])
    assert (target.tag, target.platform) == ("cp312", "musllinux_1_2_aarch64")
    assert target.suffix == ".cpython-312-aarch64-linux-musl.so"


def test_unknown_target_is_refused_with_the_known_ones(wheels: Any) -> None:
    with pytest.raises(ValueError, match=r"'cp39' .*cp310-manylinux-x86_64"):
        wheels("targets").targets_of(["cp39"])


def test_wrong_target_is_wrong_use(wheels: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each command, before it clones or builds."""
    parser = argparse.ArgumentParser()
    wheels("targets").add_targets(parser)
    assert parser.parse_args(["cp312", "musllinux"]).targets == ["cp312", "musllinux"]
    with pytest.raises(SystemExit) as raised:
        parser.parse_args(["cp312", "cp39"])
    assert raised.value.code == 2
    assert "argument TARGET: 'cp39' is" in capsys.readouterr().err


def test_two_builds_are_not_begun_for_a_wrong_target(wheels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = wheels("twice")
    monkeypatch.setattr(sys, "argv", ["twice", "cp39"])
    monkeypatch.setattr(twice, "_build", pytest.fail)
    with pytest.raises(SystemExit):
        twice.main()


@pytest.mark.parametrize("value", ["abc", "-5", "1.5", "4354819200"])
def test_date_that_no_file_can_have_is_refused(wheels: Any, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    with pytest.raises(ValueError, match=f"SOURCE_DATE_EPOCH is '{value}': set it to seconds since 1970"):
        wheels("dates").epoch(ROOT)


def test_date_without_a_given_one_is_given_to_other_tools(wheels: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither git nor a commit is needed. An empty variable is an unset one."""
    for path in (os.environ["PATH"], str(tmp_path)):
        monkeypatch.setenv("PATH", path)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "")
        assert wheels("dates").epoch(tmp_path) == 315532800
        assert os.environ["SOURCE_DATE_EPOCH"] == "315532800"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert wheels("dates").epoch(tmp_path) == 1700000000


def test_shell_says_nothing_to_compilers(wheels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CFLAGS", "CPATH", "CMAKE_ARGS", "SKBUILD_BUILD_DIR"):
        monkeypatch.setenv(name, "odd")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", "kept")
    found = wheels("compiling").environment()
    assert "odd" not in found.values()
    assert found["ZIG_GLOBAL_CACHE_DIR"] == "kept"


def test_second_build_waits_for_the_first(wheels: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys, pathlib; from wheels.folders import alone_in\nwith alone_in(pathlib.Path(sys.argv[1])): print('second')"
    with wheels("folders").alone_in(tmp_path):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline().startswith(f"another build of wheels is at work in {tmp_path}")
        assert process.poll() is None
    assert process.communicate(timeout=60)[0] == "second\n"


def test_interrupted_copy_is_no_wheel(wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = wheels("folders")
    wheel, final = tmp_path / "one.whl", tmp_path / "out/one.whl"
    final.parent.mkdir()
    wheel.write_text("a wheel")

    def interrupted(_: Path, target: Path) -> None:
        target.write_text("a wh")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(folders.shutil, "copyfile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folders.publish(wheel, final)
    assert list(final.parent.iterdir()) == []
    folders.publish(wheel, final)
    assert final.read_text() == "a wheel"


def test_wheels_of_other_commits_are_named(wheels: Any, tmp_path: Path) -> None:
    for name, commit in (("one", "a1"), ("two", "a1-dirty"), ("three", None)):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as archive:
            archive.writestr("svc.dist-info/METADATA", "")
            if commit:
                archive.writestr("svc.dist-info/commit", f"{commit}\n")
    (tmp_path / "zero.whl").write_bytes(b"")
    named = wheels("folders").of_other_commits
    assert [line.partition(":")[0] for line in named(tmp_path, ["one.whl"])] == [
        "three.whl is not of the commit of this build (not known)",
        "two.whl is not of the commit of this build (a1-dirty)",
        "zero.whl is not of the commit of this build (cannot be read",
    ]
    assert list(named(tmp_path, ["none.whl"])) == []


def test_host_without_an_answer_is_asked_once_for_a_python(
    wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = wheels("headers")
    asked: list[Any] = []

    def fail(package: Any) -> bytes:
        asked.append(package)
        raise headers.Unavailable("no answer")

    monkeypatch.setattr(headers, "fetch", fail)
    monkeypatch.setattr(headers.shutil, "which", lambda _: "/usr/bin/dpkg-deb")
    for _ in range(2):
        with pytest.raises(headers.Unavailable, match="no answer"):
            headers.headers_of("3.12", tmp_path)
    assert len(asked) == 1


def test_equal_parts_make_equal_wheels(wheels: Any, tmp_path: Path) -> None:
    assembly = wheels("assembly")
    (target,) = wheels("targets").targets_of(["cp312-manylinux-x86_64"])
    members = {
        "svc_cni-1.0.dist-info/METADATA": assembly.Member(b"Name: svc-cni\n"),
        "svc_cni-1.0.data/scripts/svc": assembly.Member(b"program", is_program=True),
        "svc/__init__.py": assembly.Member(b""),
    }
    made = []
    for folder, order in ((tmp_path / "a", members), (tmp_path / "b", dict(reversed(members.items())))):
        folder.mkdir()
        made.append(assembly.write_wheel(order, target, folder, 1_700_000_000, lambda data: zlib.compress(data)[2:-4]))
    assert made[0].name == "svc_cni-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"
    assert made[0].read_bytes() == made[1].read_bytes()
    with zipfile.ZipFile(made[0]) as archive:
        assert archive.getinfo("svc_cni-1.0.data/scripts/svc").external_attr >> 16 == 0o100755
        record = archive.read("svc_cni-1.0.dist-info/RECORD").decode().splitlines()
        assert archive.testzip() is None
    assert len(record) == len(archive.namelist())
    assert record[-1] == "svc_cni-1.0.dist-info/RECORD,,"


def test_version_of_a_wheel_is_that_of_its_metadata(wheels: Any) -> None:
    """The executable says it, in answers to users and to the agent."""
    assert wheels("assembly").version_in("svc_cni-0.1.0.dist-info") == "0.1.0"
    assert wheels("assembly").version_in("svc_cni-1.2.0rc1.dist-info") == "1.2.0rc1"


def test_python_part_has_nothing_of_a_machine(wheels: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("svc/a.py", "svc/_core/a.so", "x-1.data/scripts/svc", "x-1.dist-info/WHEEL", "x-1.dist-info/METADATA"):
            archive.writestr(name, "")
    assert set(wheels("assembly").python_part(path)) == {"svc/a.py", "x-1.dist-info/METADATA"}


def test_builds_of_different_bytes_are_named_with_their_members(wheels: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, text in ((first, "1"), (second, "2")):
        folder.mkdir()
        (folder / "sdist.tar.gz").write_text("the same")
        with zipfile.ZipFile(folder / "x.whl", "w") as archive:
            archive.writestr(zipfile.ZipInfo("svc/a.py"), "the same")
            archive.writestr(zipfile.ZipInfo("svc/b.py"), text)
    (first / "y.whl").write_text("")
    found = list(wheels("twice").differences(first, second))
    assert found == ["x.whl differs: svc/b.py", "y.whl is only in one of the builds"]


def test_equal_builds_do_not_differ_but_empty_ones_prove_nothing(wheels: Any, tmp_path: Path) -> None:
    assert list(wheels("twice").differences(tmp_path, tmp_path)) == ["nothing was built"]
    (tmp_path / "x.whl").write_text("x")
    assert not list(wheels("twice").differences(tmp_path, tmp_path))


def test_compressed_files_are_kept_for_the_next_build(wheels: Any, tmp_path: Path) -> None:
    asked: list[bytes] = []

    def deflate(data: bytes) -> bytes:
        asked.append(data)
        return zlib.compress(data)

    kept = wheels("deflation").Kept(tmp_path / "kept", deflate)
    kept.prepare({b"one", b"other"})
    assert sorted(asked) == [b"one", b"other"]
    again = wheels("deflation").Kept(tmp_path / "kept", deflate)
    assert [zlib.decompress(again(data)) for data in (b"one", b"other", b"new")] == [b"one", b"other", b"new"]
    assert asked[2:] == [b"new"]


def test_full_disk_keeps_nothing(wheels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        wheels("deflation").Kept(tmp_path, lambda data: data)(b"one")
    assert list(tmp_path.iterdir()) == []


def test_interrupted_compression_keeps_nothing(wheels: Any, tmp_path: Path) -> None:
    def fail(data: bytes) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheels("deflation").Kept(tmp_path, fail)(b"one")
    assert wheels("deflation").Kept(tmp_path, lambda data: b"stream")(b"one") == b"stream"
