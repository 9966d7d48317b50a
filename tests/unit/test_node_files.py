"""Files of the node agent: name and MTU of the node, and what applies if they are missing or invalid."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from svc.model.errors import CallerError, Code, PeerError
from svc.names import DEFAULT, Names
from svc.netconf.netconf import NetConf, parse
from svc.netconf.node_files import mtu, node_name

STRICT = replace(DEFAULT, nodename_file_required=True)


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return replace(DEFAULT, state_dir=str(tmp_path))


def netconf(**fields: Any) -> NetConf:
    ipam = {"type": "svc-ipam", **fields.pop("ipam", {})}
    config = {"name": "net", "type": "svc", "datastore_type": "embedded", "ipam": ipam, **fields}
    return parse(orjson.dumps(config), DEFAULT)


def write(tmp_path: Path, name: str, content: str | bytes) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())


# the node's name


@pytest.mark.parametrize(
    ("fields", "file", "host", "name"),
    [
        ({"nodename": " Node-1 ", "hostname": "old"}, "filed", "Host", "Node-1"),
        ({"hostname": "old"}, " Filed.Example \n", "Host", "Filed.Example"),
        ({"hostname": " Old "}, None, "Host", "Old"),
        ({"hostname": "old"}, " \n", "Host", "old"),
        ({"nodename": "  "}, None, " Host.Example\n", "host.example"),
    ],
)
def test_first_source_with_a_name_counts(
    tmp_path: Path, names: Names, fields: dict[str, Any], file: str | None, host: str, name: str
) -> None:
    """The order is: configuration, file, deprecated field, host name. Only the host name is converted to lower case."""
    if file is not None:
        write(tmp_path, "nodename", file)
    assert node_name(netconf(**fields), names, host) == name


def test_configuration_can_set_the_path_of_the_file(tmp_path: Path, names: Names) -> None:
    write(tmp_path, "nodename", "default")
    write(tmp_path, "other", "other\n")
    assert node_name(netconf(nodename_file=str(tmp_path / "other")), names, "host") == "other"


def test_node_without_a_name_is_refused(names: Names) -> None:
    with pytest.raises(CallerError, match="the node has no name") as caught:
        node_name(netconf(), names, " ")
    assert "nodename: set it" in caught.value.details


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_configured_file_is_required(tmp_path: Path, names: Names, content: str | None) -> None:
    path = tmp_path / "named"
    if content is not None:
        write(tmp_path, "named", content)
    conf = netconf(nodename_file=str(path))
    with pytest.raises(PeerError, match=f"node name file '{path}' is missing or empty") as caught:
        node_name(conf, names, "host")
    assert caught.value.code is Code.IO_FAILURE
    assert "nodename_file_optional" in caught.value.details
    assert node_name(conf, names, "host", lenient=True) == "host"
    assert node_name(replace(conf, nodename_file_optional=True), names, "host") == "host"
    assert node_name(replace(conf, nodename="given"), names, "host") == "given"


def test_names_profile_can_require_the_file(tmp_path: Path, names: Names) -> None:
    """An embedded store does not require it, because only this node uses the store."""
    strict = replace(names, nodename_file_required=True)
    shared = netconf(datastore_type="etcdv3")
    with pytest.raises(PeerError, match=f"node name file '{tmp_path}/nodename' is missing"):
        node_name(shared, strict, "host")
    assert node_name(shared, names, "host") == "host"
    assert node_name(netconf(), strict, "host") == "host"
    assert node_name(netconf(datastore_type="etcdv3", nodename_file_optional=True), strict, "host") == "host"
    write(tmp_path, "nodename", "node1")
    assert node_name(shared, strict, "host") == "node1"


def test_ipam_plugin_does_not_require_the_file(tmp_path: Path, names: Names) -> None:
    strict = replace(names, nodename_file_required=True)
    shared = netconf(datastore_type="etcdv3", nodename_file=str(tmp_path / "named"))
    assert node_name(shared, strict, "Host", ipam=True) == "host"
    write(tmp_path, "named", "node1")
    assert node_name(shared, strict, "host", ipam=True) == "node1"


@pytest.mark.parametrize("content", ["two words", "a/b", "n" * 254, b"\xff\xfe\0", "x" * 100_000])
def test_error_shows_an_invalid_name_and_its_file(tmp_path: Path, names: Names, content: str | bytes) -> None:
    write(tmp_path, "nodename", content)
    with pytest.raises(PeerError, match=rf"'{tmp_path}/nodename' holds '.+', which is not a node name") as caught:
        node_name(netconf(), names, "host")
    assert len(caught.value.msg) < 300 + len(str(tmp_path))
    assert node_name(netconf(), names, "host", lenient=True) == "host"


def test_directory_in_place_of_a_file_is_refused(tmp_path: Path, names: Names) -> None:
    for name in ("nodename", "mtu"):
        (tmp_path / name).mkdir()
    with pytest.raises(PeerError, match=r"node name file '.*' cannot be read: Is a directory"):
        node_name(netconf(), names, "host")
    with pytest.raises(PeerError, match=r"MTU file '.*' cannot be read: Is a directory"):
        mtu(netconf(), names)


def test_pipe_does_not_block(tmp_path: Path, names: Names) -> None:
    os.mkfifo(tmp_path / "nodename")
    assert node_name(netconf(), names, "host") == "host"


# the MTU


@pytest.mark.parametrize(
    ("fields", "file", "number"),
    [({"mtu": 1400}, "1450", 1400), ({}, " 1450\n", 1450), ({}, "0", 0), ({}, None, 0), ({"mtu": 1400}, "what?", 1400)],
)
def test_mtu_of_the_configuration_comes_first(
    tmp_path: Path, names: Names, fields: dict[str, Any], file: str | None, number: int
) -> None:
    if file is not None:
        write(tmp_path, "mtu", file)
    assert mtu(netconf(**fields), names) == number


def test_mtu_file_may_be_required(tmp_path: Path, names: Names) -> None:
    with pytest.raises(PeerError, match=f"MTU file '{tmp_path}/mtu' is missing") as caught:
        mtu(netconf(require_mtu_file=True), names)
    assert caught.value.code is Code.IO_FAILURE
    assert "require_mtu_file" in caught.value.details
    assert mtu(netconf(require_mtu_file=True, mtu=1400), names) == 1400


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is not a number"),
        ("jumbo", "is not a number"),
        ("-1", "is not a number"),
        ("1450.0", "is not a number"),
        ("1" * 5000, "is not a number"),
        ("\u0661", "is not a number"),
        ("67", "is out of range"),
        ("65536", "is out of range"),
        ("1279", "is too small for IPv6"),
    ],
)
def test_error_shows_an_invalid_mtu_and_its_file(tmp_path: Path, names: Names, content: str, problem: str) -> None:
    write(tmp_path, "mtu", content)
    with pytest.raises(PeerError, match=f"MTU file '{tmp_path}/mtu' holds '.*', which {problem}") as caught:
        mtu(netconf(ipam={"assign_ipv6": "true"}), names)
    assert len(caught.value.msg) < 200 + len(str(tmp_path))
    assert "set mtu in the network configuration" in caught.value.details
