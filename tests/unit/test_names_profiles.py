"""Names profiles: shipped profiles, files, and their errors."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from svc.model.endpoint import Workload, endpoint_key, has_endpoint, host_interface
from svc.model.errors import CallerError
from svc.names import DEFAULT, Names
from svc.netconf.names_profiles import SHIPPED, Profiles, canonical, load_profile

ROOT = Path(__file__).parents[2]
CALICO = load_profile("calico")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "names.toml"


def test_own_names_are_the_default(file: Path) -> None:
    """The shipped file and the code have the same names."""
    assert load_profile("") is load_profile("default") is DEFAULT
    assert load_profile(str(SHIPPED / "default.toml")) == DEFAULT
    file.write_text("")
    assert load_profile(str(file)) == DEFAULT


@pytest.mark.parametrize("profile", ["default", "calico"])
def test_shipped_profiles_set_every_name(profile: str) -> None:
    """No name is inherited by mistake."""
    given = re.findall(r"^(\w+) =", (SHIPPED / f"{profile}.toml").read_text(), re.MULTILINE)
    assert given == [field.name for field in fields(Names)]


def test_file_replaces_only_the_names_that_it_sets(file: Path) -> None:
    """The other names keep their defaults."""
    file.write_text('plugin = "other"\nnative_domains = ["a.org/"]\nendpoint_per_interface = false\n')
    names = load_profile(str(file))
    assert (names.plugin, names.native_domains, names.endpoint_per_interface) == ("other", ("a.org/",), False)
    assert (names.ipam_plugin, names.key_root) == (DEFAULT.ipam_plugin, DEFAULT.key_root)
    assert names != DEFAULT


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("unknown = 1", "unknown = 1 is not known"),
        ("plugin = 7", "plugin = 7 is a number: give a string"),
        ("plugin = 2026-11-21", "is a date or time: give a string"),
        ('plugin = ""', "plugin = '' is empty"),
        ('plugin = "a/b"', "plugin = 'a/b' is not a name"),
        ('plugin = "same"\nipam_plugin = "same"', "ipam_plugin = 'same' is the plugin's name too"),
        ('interface_prefix = "vethx"', "interface_prefix = 'vethx' has 5 bytes: give at most 4"),
        ('interface_prefix = "\u00e9\u00e9"', "cannot begin an interface's name"),
        ('interface_prefix = "a/b"', "cannot begin an interface's name"),
        ('key_root = "svc"', "key_root = 'svc' is not an absolute path"),
        ('key_root = "/svc/"', "key_root = '/svc/' is not an absolute path"),
        ('key_root = "/a/../b"', "key_root = '/a/../b' is not an absolute path"),
        ('state_dir = "var"', "state_dir = 'var' is not an absolute path"),
        ('api_version = "svc.internal"', "api_version = 'svc.internal' is not an API group with a version"),
        ('annotation_prefix = "Bad_Domain"', "annotation_prefix = 'Bad_Domain' is not a domain"),
        ('conflist = "../x.conflist"', "conflist = '../x.conflist' is not the file name"),
        ('conflist = "svc.conf"', "conflist = 'svc.conf' is not the file name"),
        ("native_domains = []", "native_domains = [] is not a list with entries"),
        ('native_domains = "a.org/"', "is not a list with entries"),
        ('native_domains = ["a.org"]', "native_domains[0] = 'a.org' is not a domain with a slash"),
        ("route_protocol = 4", "route_protocol = 4 is not a protocol of routing programs: give 5 to 255"),
        ("route_protocol = 256", "route_protocol = 256 is not a protocol of routing programs"),
        ("route_protocol = true", "route_protocol = true is a boolean"),
        ('vxlan_device = "vxlan.of.this.node"', "vxlan_device = 'vxlan.of.this.node' has 18 characters: give at most 15"),
        ('ipip_device = "a/b"', "ipip_device = 'a/b' is not a name"),
        ('foreign_devices = ["vxlan.of.another"]', "foreign_devices[0] = 'vxlan.of.another' has 16 characters"),
        ('foreign_chains = ["two words"]', "foreign_chains[0] = 'two words' is not a name"),
        ("native_domains = [1]", "native_domains[0] = 1 is not a domain with a slash"),
        ('endpoint_per_interface = "yes"', "endpoint_per_interface = 'yes' is a string: give a boolean"),
        ("endpoint_per_interface = 1", "endpoint_per_interface = 1 is a number: give a boolean"),
    ],
)
def test_error_names_an_invalid_field(file: Path, line: str, message: str) -> None:
    """The error has the file, the field, the value and the fix."""
    file.write_text(line)
    with pytest.raises(CallerError) as caught:
        load_profile(str(file))
    text = str(caught.value)
    assert str(file) in text
    problem, _, fix = message.partition(": ")
    assert problem in text
    assert fix in text
    assert caught.value.details.partition(": ")[2]


def test_one_error_lists_all_invalid_fields(file: Path) -> None:
    """The author of the file can correct all of them at once."""
    file.write_text('key_root = "x"\nplugin = ""\nnovel = true\ninterface_prefix = "toolong"')
    with pytest.raises(CallerError, match="4 errors") as caught:
        load_profile(str(file))
    assert all(name in caught.value.details for name in ("key_root", "plugin", "novel", "interface_prefix"))


@pytest.mark.parametrize("content", [b"plugin = ", b"\xff", b"plugin = 1\nplugin = 2"], ids=["cut", "not UTF-8", "twice"])
def test_file_that_is_not_toml_is_refused(file: Path, content: bytes) -> None:
    """The error has the path."""
    file.write_bytes(content)
    with pytest.raises(CallerError, match="is not TOML") as caught:
        load_profile(str(file))
    assert str(file) in caught.value.msg


@pytest.mark.parametrize("name", ["nobody", "../names/profiles/calico", "calico.toml", "."])
def test_error_of_an_unknown_profile_lists_the_known_ones(name: str) -> None:
    """A path outside the directory of the profiles is not a name of a profile."""
    with pytest.raises(CallerError) as caught:
        load_profile(name)
    assert "calico" in str(caught.value)
    assert "cannot be read" in caught.value.msg or "shipped are calico, default" in caught.value.details


def test_missing_file_is_refused(file: Path) -> None:
    """A cache that has read the file refuses it too."""
    profiles = Profiles()
    file.write_text('plugin = "p"')
    profiles.get(str(file))
    file.unlink()
    for load in (load_profile, profiles.get):
        with pytest.raises(CallerError, match="cannot be read: No such file"):
            load(str(file))


def test_cache_reads_a_file_again_after_a_change(file: Path) -> None:
    """Without a change it returns the same object, because calls with the same object share sessions."""
    profiles = Profiles()
    assert profiles.get("") is profiles.get("default") is DEFAULT
    assert profiles.get("calico") is profiles.get("calico")
    file.write_text('plugin = "a"')
    first = profiles.get(str(file))
    assert profiles.get(str(file)) is first
    draft = file.with_name("draft")
    draft.write_text('plugin = "b"')
    os.rename(draft, file)
    assert profiles.get(str(file)).plugin == "b"


def test_recorded_path_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The agent has another working directory."""
    monkeypatch.chdir(tmp_path)
    assert canonical("./names.toml") == f"{tmp_path}/names.toml"
    assert [canonical(name) for name in ("", "default", "calico")] == ["", "", "calico"]


def test_default_names_need_no_file() -> None:
    """Importing them loads no parser, because every one-shot imports them."""
    program = (
        "import sys; before = set(sys.modules); import svc.netconf.names_profiles;"  # coverage imports a parser, too
        "print([name for name in ('tomllib', 'tomli') if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


# names that Calico uses

POD = Workload("c2", "web-0", "default")


def test_host_interfaces_have_the_names_of_calico() -> None:
    """Calico derives them from the name of the pod, or from the start of the ID of a container without a pod."""
    assert host_interface(CALICO, Workload("c1"), "eth0") == "calic1"
    assert host_interface(CALICO, Workload("0123456789abcdef"), "eth0") == "cali0123456789a"
    assert host_interface(CALICO, POD, "eth0") == "cali0d7763386da"
    assert host_interface(CALICO, Workload("x", "mypod", "default"), "eth0") == "cali4e199eba087"


@pytest.mark.parametrize("names", [DEFAULT, CALICO], ids=["default", "calico"])
@pytest.mark.parametrize("workload", [POD, Workload("0123456789abcdef")], ids=["pod", "container"])
def test_every_interface_of_a_workload_has_its_own_host_interface(names: Names, workload: Workload) -> None:
    """The names are not longer than the kernel permits."""
    found = {host_interface(names, workload, ifname) for ifname in ("eth0", "eth1", "net1")}
    assert len(found) == 3
    assert all(name.startswith(names.interface_prefix) and len(name) <= 15 for name in found)


def test_calico_has_one_endpoint_per_pod() -> None:
    """It is the endpoint of the first interface. Containers without a pod have one for each interface."""
    assert all(has_endpoint(DEFAULT, POD, ifname) for ifname in ("eth0", "eth1"))
    assert [has_endpoint(CALICO, POD, ifname) for ifname in ("eth0", "eth1")] == [True, False]
    assert has_endpoint(CALICO, Workload("c1"), "eth1")
    assert endpoint_key(CALICO, "node1", POD, "eth0").name == "node1-k8s-web--0-eth0"
