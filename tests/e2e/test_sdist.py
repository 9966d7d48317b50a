"""The sdist builds with gcc alone and without a network, and what it builds works."""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness.bare import BareNode, environment
from harness.datastores import EmbeddedSite
from harness.netns import Netns
from harness.sdist import build_offline, build_sdist

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that gcc builds from the sdist."""
    built, log = build_offline(sdist, tmp_path_factory.mktemp("offline"))
    assert "musl" not in log
    assert "zig" not in log
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("env"), wheel)


def test_sdist_has_what_a_packager_needs(sdist: Path) -> None:
    """It has sources, documents and the Debian package, and nothing that was built."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"PKG-INFO", "LICENSE", "CMakeLists.txt", "_core/shim.c", "_core/netlink.pyx", "svc/py.typed"} <= names
    assert {"wheels/README.md", "docs/README.md", "deploy/systemd/svc-agent.service"} <= names
    assert [name for name in names if name.endswith((".so", ".pyc", ".whl"))] == []


def test_executable_is_static(programs: Path) -> None:
    """Without musl it has the C library of gcc, and still depends on nothing."""
    shown = subprocess.run(["readelf", "-lW", programs / "svc"], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in shown


def test_programs_know_their_version(programs: Path, sdist: Path) -> None:
    version = sdist.name.removeprefix("svc_cni-").removesuffix(".tar.gz")
    shown = subprocess.run([programs / "svc", "-v"], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == version
    command = [str(programs / "svcctl"), "version", "--client", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["client"] == {"version": version, "commit": None}


@pytest.mark.parametrize("agent", [True, False], ids=["agent", "one-shot"])
def test_pod_is_attached_and_removed(agent: bool, programs: Path, tmp_path: Path) -> None:
    site = EmbeddedSite(tmp_path / "node" / "state")
    with BareNode(programs, tmp_path / "node", site) as node, Netns("pod") as sandbox:
        node.apply_pools()
        if not agent:
            node.stop_agent()
        pod = node.pod(sandbox, "c1")
        pod.add()
        assert pod.addresses
        pod.delete()
        assert not [name for name in node.netns.links() if name.startswith("svc")]
