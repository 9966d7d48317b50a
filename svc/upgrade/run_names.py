"""Names of what a run keeps in the cluster."""

from typing import Final

from svc.datastore.orch import leases
from svc.upgrade.places import Place

NAME: Final = "svc-upgrade"
"""Of the Lease and of the ConfigMap of a run; its Secrets begin with it."""

NAMESPACE: Final = leases.NAMESPACE
RUN_LABEL: Final = f"{NAME}-run"
RECORD: Final = Place("v1", "ConfigMap", NAMESPACE, NAME)


def secret_place(run: str, batch: int, number: int) -> Place:
    """Return the place of a part of a backup."""
    return Place("v1", "Secret", NAMESPACE, f"{NAME}-{run}-{batch}-{number}")
