"""Metrics of the agent as text. Imported only when metrics are served."""

from typing import Final

from svc.agent.metric_families import FAMILIES
from svc.metrics import Metrics
from svc.metrics.exposition import Exposition

_EXPOSITION: Final = Exposition(FAMILIES)


def exposition(metrics: Metrics) -> str:
    """Return the metrics as text. A counter with labels has no sample before its first event."""
    return _EXPOSITION.text(metrics.read())
