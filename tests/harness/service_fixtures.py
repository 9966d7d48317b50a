"""Fixtures with services of the type LoadBalancer."""

from collections.abc import Iterator

import pytest

from harness.kube import Kube
from harness.services import Services, in_namespace


@pytest.fixture
def services(kube: Kube) -> Iterator[Services]:
    """Return access to the services of a namespace that the fixture deletes."""
    with in_namespace(kube) as made:
        yield made
