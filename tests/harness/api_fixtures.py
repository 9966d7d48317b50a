"""Fixtures of tests that send requests to the API server through a proxy, which can refuse and lose them."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from harness.api_proxy import ApiProxy
from harness.kube import ADMIN_TOKEN, Kube
from svc.datastore.orch.auth import ApiAuth
from svc.datastore.orch.client import Client


@pytest.fixture
def proxy(kube: Kube) -> Iterator[ApiProxy]:
    with ApiProxy(kube) as made:
        yield made


@pytest.fixture
def client(proxy: ApiProxy) -> Iterator[Client]:
    with closing(Client(ApiAuth({"orch_api_root": proxy.url, "k8s_auth_token": ADMIN_TOKEN}))) as made:
        yield made


@pytest.fixture
def fast_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the part that releases addresses look at the tables as soon as they change."""
    monkeypatch.setattr("svc.controllers.node.addresses.part._LOOK_SECONDS", 0.02)
    monkeypatch.setattr("svc.controllers.controller._POLL_SECONDS", 0.02)
