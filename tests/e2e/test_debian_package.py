"""The Debian packages: built here, installed into a small Debian, upgraded, removed and purged."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.debian_root import DebianRoot, build_packages, require_tools
from harness.netns import Netns
from harness.node import pool_document
from harness.polling import wait_until
from harness.shim import ROOT
from svc import __version__

LOAD_PACKAGES = """
import sys
from svc.datastore.open import load_packages
from svc.model.errors import SvcError
try:
    load_packages(sys.argv[1])
except SvcError as error:
    sys.exit(error.as_text())
"""
PYTHON = "/usr/lib/svc/bin/python3"
LOAD = (PYTHON, "-I", "-c", LOAD_PACKAGES)

pytestmark = [pytest.mark.root, pytest.mark.long]


@pytest.fixture(scope="module")
def packages() -> dict[str, Path]:
    """Return the packages by their names. lintian has found no error in them."""
    require_tools()
    return {path.name.partition("_")[0]: path for path in build_packages()}


@pytest.fixture
def pod() -> Iterator[Netns]:
    with Netns("pod") as sandbox:
        yield sandbox


@pytest.fixture
def root(packages: dict[str, Path], pod: Netns, tmp_path: Path) -> Iterator[DebianRoot]:
    """Return a new Debian with the package svc-cni."""
    with DebianRoot(tmp_path / "root", pod) as debian:
        debian.install(packages["svc-cni"])
        yield debian


@pytest.fixture(scope="module")
def common(packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRoot]:
    """Return a Debian with all packages, for tests that change nothing."""
    with Netns("pod") as sandbox, DebianRoot(tmp_path_factory.mktemp("common") / "root", sandbox) as debian:
        debian.install(*packages.values())
        yield debian


def configure(root: DebianRoot) -> None:
    root.run("svcctl", "install", "--bin-dir", "/usr/lib/cni")
    root.run("svcctl", "pool", "apply", "-f", "-", stdin=pool_document("pool", "10.65.0.0/16"))


def test_programs_have_the_version_of_the_package(common: DebianRoot) -> None:
    for program in ("svcctl", "svc-agent", "svc-controllers", "svc-routes"):
        assert common.run(program, "--version").split() == [program, __version__]
    assert common.run("/usr/lib/svc/bin/svc", "-v").strip() == __version__
    client = json.loads(common.run("svcctl", "version", "--client", "-o", "json"))["client"]
    assert client["version"] == __version__
    assert common.run("dpkg-query", "--show", "--showformat", "${Version}", "svc-cni").partition("-")[0] == __version__


def test_unit_is_that_of_the_project(common: DebianRoot) -> None:
    """Its first line says how to change it. The rest differs in the Python alone."""
    unit = (common.directory / "lib/systemd/system/svc-agent.service").read_text().splitlines()
    here = (ROOT / "deploy/systemd/svc-agent.service").read_text().replace("/opt/svc/bin/", "/usr/lib/svc/bin/").splitlines()
    assert unit[0].startswith("# Of the package svc-cni.")
    assert unit[1:] == here[1:]


def test_each_program_has_a_manual_page(common: DebianRoot) -> None:
    pages = {path.name for path in (common.directory / "usr/share/man").rglob("*.gz")}
    wanted = {f"{name}.8.gz" for name in ("svc", "svc-ipam", "svc-agent", "svc-agent-run", "svc-controllers", "svc-routes")}
    assert {*wanted, "svcctl.1.gz", "svcctl-install.1.gz"} <= pages


def test_packages_of_extras_bring_the_clients_of_datastores(common: DebianRoot) -> None:
    for kind in ("etcdv3", "orch"):
        common.run(*LOAD, kind)
    common.run(PYTHON, "-I", "-c", "import svc.routes.devices")


def test_agent_of_the_unit_attaches_a_container(root: DebianRoot, pod: Netns) -> None:
    """Other datastores need other packages, which their error names."""
    missing = root.call(*LOAD, "etcdv3").stderr
    assert "apt install svc-cni-etcd" in missing
    configure(root)
    root.start_agent()
    result = root.cni("ADD", "c1", pod)
    assert result["ips"][0]["address"].startswith("10.65.")
    assert "svc-agent" not in root.run("svcctl", "status")
    root.cni("DEL", "c1", pod)


def test_upgrade_renews_the_plugins(root: DebianRoot, pod: Netns, packages: dict[str, Path]) -> None:
    """Attached containers stay attached, and the options of the installation stay."""
    configure(root)
    root.start_agent()
    root.cni("ADD", "c1", pod)
    plugin = root.directory / "usr/lib/cni/svc"
    plugin.write_bytes(plugin.read_bytes() + b"of an earlier version")
    root.install(packages["svc-cni"])
    assert plugin.read_bytes() == (root.directory / "usr/lib/svc/bin/svc").read_bytes()
    root.cni("DEL", "c1", pod)


def test_removal_without_containers_uninstalls(root: DebianRoot, pod: Netns) -> None:
    before = root.files()
    configure(root)
    root.start_agent()
    root.cni("ADD", "c1", pod)
    root.cni("DEL", "c1", pod)
    root.stop_agent()
    root.run("dpkg", "--remove", "svc-cni")
    assert not (root.directory / "usr/lib/cni/svc").exists()
    root.run("dpkg", "--purge", "svc-cni")
    left = {name for name in root.files() - before if not name.startswith("var/lib/svc/")}
    assert left == set()
    assert not [name for name in root.files() if "svc" in name and not name.startswith("var/lib/svc/")]


def test_removal_with_containers_leaves_their_plugin(root: DebianRoot, pod: Netns, packages: dict[str, Path]) -> None:
    """A DEL succeeds without the package. Its address is released when the package is installed again."""
    configure(root)
    root.start_agent()
    address = root.cni("ADD", "c1", pod)["ips"][0]["address"].partition("/")[0]
    printed = root.run("dpkg", "--remove", "svc-cni")
    assert "attachments of containers that still run: 1" in printed
    root.stop_agent()
    root.run("dpkg", "--purge", "svc-cni")
    root.cni("DEL", "c1", pod)
    root.install(packages["svc-cni"])
    assert "wait=" not in (root.directory / "usr/lib/cni/svc.install").read_text()
    assert "is in use" in root.run("svcctl", "ipam", "show", "--ip", address)
    root.start_agent()
    wait_until(lambda: "is in use" not in root.run("svcctl", "ipam", "show", "--ip", address))
