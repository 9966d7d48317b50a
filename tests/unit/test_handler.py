"""The configurations of calls: what is parsed again."""

from contextlib import closing
from pathlib import Path

import orjson
import pytest

from svc.attach.context import Context
from svc.call_trace import CallTrace, new_request_id
from svc.cni.call_io import CallInput, Reply
from svc.cni.handler import handle_call
from svc.datastore.open import open_backend
from svc.names import DEFAULT
from svc.netconf import netconf


def call(context: Context, verb: str, container: str, address: str) -> Reply:
    """Carry out a call after the ADD of a container, whose namespace is gone."""
    result = {"cniVersion": "1.1.0", "ips": [{"address": f"{address}/32"}]}
    stdin = {
        "cniVersion": "1.1.0", "name": f"of-{verb}", "type": "svc", "datastore_type": "embedded",
        "ipam": {"type": "svc-ipam"}, "prevResult": result,
    }  # fmt: skip
    environment = {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": container, "CNI_NETNS": "/nonexistent", "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
    }  # fmt: skip
    steps = handle_call(context, CallInput("svc", environment, orjson.dumps(stdin)), CallTrace(new_request_id()))
    with pytest.raises(StopIteration) as end:
        next(steps)
    reply: Reply = end.value.value
    return reply


@pytest.mark.parametrize("verb", ["CHECK", "DEL"])
def test_configuration_is_parsed_once_for_all_containers(tmp_path: Path, verb: str) -> None:
    """Each call brings another result of an ADD."""
    before = netconf._parsed.cache_info().misses
    with closing(Context(lambda _: DEFAULT, tmp_path, lambda store, names: open_backend(store, tmp_path, names))) as context:
        replies = [call(context, verb, f"c{number}", f"10.65.0.{number}") for number in range(1, 4)]
    assert netconf._parsed.cache_info().misses == before + 1
    assert [reply.status for reply in replies] == 3 * [1 if verb == "CHECK" else 0]
    assert all(b"prevResult" not in reply.stdout for reply in replies)
