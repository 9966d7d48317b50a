"""Requests of GC: a constant number of listings, for any number of pods."""

import pytest

from harness.backend_wrappers import NonAtomic, Reading
from harness.inprocess import WHERE, Host
from svc.attach.gc import collect_garbage
from svc.call_trace import CallTrace
from svc.model.keys import BlockKey, BlockQuery, HandleKey, HandleQuery

pytestmark = pytest.mark.root

PODS = 200
ADDRESS_REQUESTS = (BlockKey, BlockQuery, HandleKey, HandleQuery)


@pytest.mark.parametrize("atomic", [True, False])
def test_gc_lists_blocks_once(host: Host, atomic: bool) -> None:
    """Without transactions it lists the handles too. It reads no handle or block by itself."""
    reading = Reading(host.store)
    host.store = reading if atomic else NonAtomic(reading)
    names = [f"c{number}" for number in range(PODS)]
    for name in names:
        host.add(None, container=name)
    reading.read.clear()
    collect_garbage(host.context, "net", [(name, "eth0") for name in names], WHERE, CallTrace("test"))
    found = [request for request in reading.read if isinstance(request, ADDRESS_REQUESTS)]
    assert found == [BlockQuery(), *([] if atomic else [HandleQuery()])]
    assert len(host.context.journal.all()) == PODS
