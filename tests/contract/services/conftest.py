"""Fixtures for the controller `loadbalancer` on real servers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from harness.datastores import Site
from harness.running_controller import Running, running
from harness.services import Services, store_for_services
from svc.controllers.loadbalancer.service_addresses import ServiceAddresses
from svc.datastore.api import Backend
from svc.datastore.orch.client import Client


@pytest.fixture
def store(site: Site) -> Iterator[Backend]:
    with store_for_services(site) as made:
        yield made


@pytest.fixture
def run(client: Client, store: Backend, services: Services) -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(running(client, store, ServiceAddresses, **options))
