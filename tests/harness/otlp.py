"""The OTLP receiver of the OpenTelemetry Collector, which decodes and checks the traces that it gets.

`make otlp-receiver` builds it once and keeps it outside the checkout.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.etcd import free_ports
from harness.polling import wait_until

NO_RECEIVER = "the OTLP receiver is not built: make otlp-receiver"
PROGRAM = Path(os.environ.get("SVC_TESTCACHE", "/var/cache/svc-tests")) / "otlp" / "otlp-receiver"

Span = dict[str, Any]


class Receiver:
    """A running receiver. `prefix` is a command that executes it elsewhere, such as in a network namespace."""

    def __init__(self, output: Path, prefix: Sequence[str] = (), **http: Any) -> None:
        self._output = output
        self.port = free_ports(1)[0]
        config = {"protocols": {"http": {"endpoint": f"127.0.0.1:{self.port}", **http}}}
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [*prefix, str(PROGRAM), json.dumps(config)], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT
            )
        wait_until(lambda: bool(self._lines()) or self._process.poll() is not None)
        assert self._lines()[:1] == ["ready"], self._output.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that it has accepted, in its own spelling."""
        return [json.loads(line) for line in self._lines()[1:]]

    def spans(self) -> list[Span]:
        """Return the spans of all requests. Each has its attributes as a dictionary."""
        scopes = [scope for each in self.requests() for found in each["resourceSpans"] for scope in found["scopeSpans"]]
        return [{**span, "attributes": attributes(span)} for scope in scopes for span in scope["spans"]]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(20) == 0, self._output.read_text()

    def _lines(self) -> list[str]:
        """Return the complete lines."""
        return self._output.read_text().split("\n")[:-1]


def attributes(owner: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span or a resource; numbers as text, as OTLP has them."""
    return {each["key"]: next(iter(each["value"].values())) for each in owner.get("attributes", ())}


@contextmanager
def receiver(output: Path, prefix: Sequence[str] = (), **http: Any) -> Iterator[Receiver]:
    """Run a receiver. `http` are settings of its HTTP server."""
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip(NO_RECEIVER)
    running = Receiver(output, prefix, **http)
    try:
        yield running
    finally:
        running.close()
