"""The image itself: its settings, what is in its file system, and what is not."""

import hashlib
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import built_image
from harness.built_image import BuiltImage
from svc import __version__

pytestmark = [pytest.mark.root, pytest.mark.slow]

USER = 10001
PROGRAMS = (  # that the manifests, or svc, call by name
    "svcctl", "svc-agent", "svc-routes", "svc-controllers", "python3", "sh", "nft",
)  # fmt: skip
COMPILERS = ("gcc", "cc", "g++", "clang", "tcc", "as", "ld", "make", "go", "pip", "pip3", "apt", "apt-get", "perl5.36")
LICENCE = "Apache-2.0"
LARGEST = 170 << 20  # bytes of the archive, which is not compressed
IMPORT_ALL = """
import importlib, pkgutil, svc
for each in pkgutil.walk_packages(svc.__path__, "svc."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
"""


@pytest.fixture(scope="module")
def root(image: BuiltImage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file system of the image in a directory."""
    folder = tmp_path_factory.mktemp("image") / "root"
    image.unpack(folder)
    return folder


def files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names)


def run(root: Path, *command: str, user: int = 0) -> str:
    """Return the output of a program in the file system, without anything around it."""
    path = {"PATH": "/opt/svc/bin:/usr/sbin:/usr/bin"}
    done = subprocess.run(
        ["chroot", f"--userspec={user}:{user}", str(root), *command], env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_settings(image: BuiltImage) -> None:
    settings, annotations = image.settings, image.manifest["annotations"]
    assert settings["Cmd"] == ["svc-agent", "run"]
    assert "Entrypoint" not in settings  # the manifests call programs by name
    assert "User" not in settings
    assert any(each.startswith("PATH=/opt/svc/bin:") for each in settings["Env"])
    for found in (settings["Labels"], annotations):
        assert found["org.opencontainers.image.version"] == __version__
        assert found["org.opencontainers.image.licenses"] == LICENCE
        assert found["org.opencontainers.image.source"].startswith("https://")


def test_size(image: BuiltImage) -> None:
    assert image.archive.stat().st_size < LARGEST


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_on_the_path(root: Path, program: str) -> None:
    assert run(root, "sh", "-c", f"command -v {program}").startswith("/")


@pytest.mark.parametrize("name", ["svc", "svc-ipam"])
def test_executables_are_static(root: Path, name: str) -> None:
    found = subprocess.run(["readelf", "-l", root / "opt/svc/bin" / name], capture_output=True, text=True, check=True).stdout
    assert "LOAD" in found
    assert "INTERP" not in found


def test_no_compiler_and_no_installer(root: Path) -> None:
    names = {path.name for path in files(root) if path.parent.name in ("bin", "sbin")}
    assert "python3" in names
    assert names.isdisjoint(COMPILERS)
    assert not list(root.rglob("site-packages/pip*"))
    assert not (root / "context").exists()


def test_no_file_gains_rights_of_another_user(root: Path) -> None:
    gaining = stat.S_ISUID | stat.S_ISGID
    assert [path for path in files(root) if not path.is_symlink() and path.stat().st_mode & gaining] == []


def test_licences_are_there(root: Path) -> None:
    """Each package of the distribution has its copyright, and each distribution of Python what its wheel has."""
    packages = run(root, "dpkg-query", "--show", "--showformat", "${Package}\\n").split()
    missing = [name for name in packages if not (root / "usr/share/doc" / name).exists()]
    assert len(packages) > 50
    assert missing == []
    assert list(root.glob("opt/svc/lib/python3*/site-packages/svc_cni-*.dist-info/licenses/LICENSE"))


def test_all_modules_are_compiled(root: Path) -> None:
    """Otherwise each start would compile them again, because the file system is read-only."""
    for folder in (root / "opt/svc/lib", *(root / "usr/lib").glob("python3.*")):
        sources = [path for path in folder.rglob("*.py") if path.is_file() and "lib2to3" not in path.parts]
        lacking = [path for path in sources if not list((path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc"))]
        assert len(sources) > 100
        assert lacking == []


def test_all_modules_of_svc_can_be_imported(root: Path) -> None:
    """Those of each datastore included: the image lacks a part of what the lock files list."""
    run(root, "python3", "-c", IMPORT_ALL)


def test_commands_of_the_user_of_controllers(root: Path) -> None:
    assert __version__ in run(root, "svcctl", "--version", user=USER)
    assert "usage" in run(root, "svc-controllers", "--help", user=USER).lower()
    assert run(root, "id", "-un", user=USER) == "svc\n"


def test_another_machine_s_identity_is_not_in_it(root: Path) -> None:
    assert (root / "etc/machine-id").read_bytes() == b""


def write_base(path: Path, root: Path) -> None:
    """Write the file system of an image without svc as `docker save` does, with a file of its own."""
    (root / "etc/other-base").touch()
    layer = path.with_suffix(".layer")
    subprocess.run(["tar", "-cf", layer, "--exclude=./opt/svc", "-C", root, "."], check=True)
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    (path.parent / "config.json").write_text(
        json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}})
    )
    manifest = [{"Config": "config.json", "RepoTags": ["other:1"], "Layers": [layer.name]}]
    (path.parent / "manifest.json").write_text(json.dumps(manifest))
    names = ("manifest.json", "config.json", layer.name)
    subprocess.run(["tar", "-cf", path, "-C", path.parent, *names], check=True)


@pytest.mark.long
def test_another_base(image: BuiltImage, tmp_path: Path) -> None:
    """Its files stay. svc is on top of them."""
    image.unpack(tmp_path / "base")
    write_base(tmp_path / "base.tar", tmp_path / "base")
    base = f"docker-archive:{tmp_path}/base.tar"
    done = built_image.build(tmp_path / "built", BASE=base)
    assert done.returncode == 0, done.stdout + done.stderr
    built = BuiltImage(tmp_path / "built")
    built.unpack(tmp_path / "root")
    assert (tmp_path / "root/etc/other-base").exists()
    assert built.settings["Labels"]["org.opencontainers.image.base.name"] == base
    assert __version__ in run(tmp_path / "root", "svcctl", "--version")


@pytest.mark.long
def test_two_builds_give_the_same_image(image: BuiltImage, tmp_path: Path) -> None:
    done = built_image.build(tmp_path / "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert BuiltImage(tmp_path / "again").digest == image.digest
