"""A wheel alone: pip installs it with what it declares, svcctl installs the plugin, the agent runs, and pods ping each other.

`SVC_WHEEL` names the wheel, such as one of `make wheels`; without it, one is built by the compiler of this machine.
"""

import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.bare import BareNode, build_wheel
from harness.cluster_node import ClusterNode
from harness.datastores import EmbeddedSite, Site, furnish
from harness.netns import Netns, run
from harness.pod import Pod

pytestmark = [pytest.mark.long, pytest.mark.root]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SVC_WHEEL")
    return Path(given).resolve() if given else build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=["", "etcd", "orch"], ids=["bare", "etcd", "orch"])
def extra(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def programs(wheel: Path, extra: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of programs of a fresh environment, which pip filled from the index."""
    folder = tmp_path_factory.mktemp("env")
    run("python3", "-m", "venv", str(folder))
    run(str(folder / "bin/pip"), "install", "--quiet", f"{wheel}[{extra}]" if extra else str(wheel))
    return folder / "bin"


@pytest.fixture(scope="module")
def shared(extra: str, request: pytest.FixtureRequest) -> Iterator[Site | None]:
    """Return the datastore of the extra, with pools; None for the embedded one."""
    if not extra:
        yield None
        return
    site: Site = request.getfixturevalue(f"{extra}_site")
    furnish(site, "node1")
    yield site
    site.clear()


def pod(node: ClusterNode, sandbox: Netns, name: str) -> Pod:
    node.site.add_pod(name)
    return node.pod(sandbox, name, args=f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}")


def test_pods_ping_each_other(wheel: Path, programs: Path, shared: Site | None, tmp_path: Path) -> None:
    with ExitStack() as stack:
        node = stack.enter_context(BareNode(programs, tmp_path / "node", shared or EmbeddedSite(tmp_path / "node/state")))
        if shared is None:
            node.apply_pools()
        assert (node.bin_dir / "svc").read_bytes() == script_of(wheel, "svc")
        assert used_package(programs).startswith(f"{programs.parent}/lib/")
        one, other = (pod(node, stack.enter_context(Netns("pod")), name) for name in ("web-0", "web-1"))
        one.add()
        other.add()
        one.netns.run("ping", "-c", "1", "-w", "5", other.addresses[0])
        node.netns.run("ping", "-c", "1", "-w", "5", one.addresses[0])
        assert one.addresses[0] in node.svcctl("attachments").stdout
        one.delete()
        assert node.stop_agent() == 0
        other.delete()
        assert not [name for name in node.netns.links() if name.startswith("svc")]


def script_of(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [each for each in archive.namelist() if each.endswith(f".data/scripts/{name}")]
        return archive.read(member)


def used_package(programs: Path) -> str:
    """Return where the interpreter of the environment finds the package."""
    return run(str(programs / "python"), "-I", "-c", "import svc; print(svc.__file__)").stdout
