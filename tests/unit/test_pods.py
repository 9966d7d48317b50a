"""Errors of reads from the API server for an ADD."""

from contextlib import closing
from typing import Any

import pytest

from svc.datastore.orch.client import ApiError, Client
from svc.model.errors import Code, PeerError
from svc.orch.pods import PodReader


class Server(Client):
    """API server without any object."""

    def __init__(self) -> None:
        pass

    def close(self) -> None:
        """Do nothing: the stub opens no connection."""

    @property
    def place(self) -> str:
        return "API server https://h"

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """Answer as for an object that does not exist."""
        raise ApiError(404, "NotFound", f'"{path}" not found', call=f"GET {path}")


def test_unknown_object_names_the_server_and_both_causes() -> None:
    """The object was deleted, or the kubeconfig is that of another cluster."""
    with closing(PodReader(Server())) as reader, pytest.raises(PeerError) as caught:
        reader.namespace("default")
    assert (caught.value.code, caught.value.msg) == (Code.ORCHESTRATOR, "API server https://h does not know namespace default")
    assert caught.value.details == "if it was deleted, nothing is to be done; else compare the kubeconfig's cluster"


@pytest.mark.parametrize("answer", [{}, {"metadata": None}, {"metadata": 7}])
def test_answer_without_metadata_is_no_namespace(answer: dict[str, Any]) -> None:
    """A proxy may answer in place of the API server."""

    class Proxy(Server):
        def get(self, path: str, **params: str) -> dict[str, Any]:
            return answer

    with closing(PodReader(Proxy())) as reader, pytest.raises(PeerError) as caught:
        reader.namespace("default")
    assert caught.value.code == Code.ORCHESTRATOR
    assert "GET /api/v1/namespaces/default: the answer is not a resource: it has no metadata" in caught.value.msg
