"""The tables of a process with all controllers."""

import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from svc.controllers.assembly import assemble
from svc.controllers.conditions import Conditions
from svc.controllers.configuration import Configuration, Live
from svc.controllers.configuration_resource import ConfigurationResource
from svc.controllers.controller import Shared
from svc.controllers.settings import read
from svc.controllers.table import GAP_SECONDS, ApiTable, StoreTable, Table
from svc.controllers.tables import Tables
from svc.datastore.embedded import EmbeddedStore
from svc.datastore.orch.client import Client
from svc.datastore.orch.watch import PagedWatch
from svc.leader.election import Election
from svc.names import DEFAULT

ETCD = {"ETCD_ENDPOINTS": "http://127.0.0.1:1"}
ORCH = {"DATASTORE_TYPE": "orch"}


class Api(Client):
    """A client that no table uses before its start."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("variables", [ETCD, ORCH], ids=["etcdv3", "orch"])
def test_each_kind_of_object_has_one_watch(variables: dict[str, str], tmp_path: Path) -> None:
    """A second one would double the memory of the rows, and the load of the servers."""
    settings = read({"KUBERNETES_SERVICE_HOST": "10.96.0.1"} | variables, DEFAULT, None)
    with closing(EmbeddedStore(tmp_path / "store.db")) as store:
        client = Api()
        tables = Tables(client, store, pytest.fail)
        live = Live(Configuration())
        shared = Shared(client, store, tables, DEFAULT, Election("test"), live, Conditions(), pytest.fail)
        parts = [ConfigurationResource(shared, settings), *assemble(settings, shared)]
        watched = Counter(map(_source, tables._made))
    assert parts
    assert [source for source, count in watched.items() if count > 1] == []


def _source(table: Table[Any, Any]) -> Any:
    return table._query if isinstance(table, StoreTable) else table._what


class Interrupted(PagedWatch):
    """A watch that ends after the first interruption."""

    lists_again = False

    def steps(self) -> Generator[None, None, None]:
        yield None

    def list_again(self) -> None:
        self.lists_again = True


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, False), (GAP_SECONDS, True)])
def test_table_is_listed_again_after_a_long_interruption(seconds: float, expected: bool) -> None:
    """A stream that continues does not say when it has reported all that was missed."""
    table: ApiTable[str, int] = ApiTable(Api(), "/api/v1/pods", lambda _: ("", None), pytest.fail)
    watch = table._watch = Interrupted(Api(), "/api/v1/pods")
    table._interrupted_since = time.monotonic() - seconds
    table._follow()
    assert watch.lists_again is expected
