"""What callers of a node know: the log of requests and replies, which a kill of the node does not lose."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ADD: Final = "+"
DEL: Final = "-"
_SENT: Final = "?"  # before a request; the reply follows


@dataclass
class Ledger:
    """A line for each event: `? CONTAINER` for a request, `+ CONTAINER ADDRESSES` and `- CONTAINER` for successful replies."""

    path: Path

    def request(self, container: str) -> None:
        self._write(f"{_SENT} {container}")

    def added(self, container: str, addresses: list[str]) -> None:
        self._write(f"{ADD} {container} {','.join(addresses)}")

    def deleted(self, container: str) -> None:
        self._write(f"{DEL} {container}")

    def _write(self, line: str) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, f"{line}\n".encode())  # whole lines: a kill cannot cut one off
        finally:
            os.close(file)

    def unanswered(self) -> list[str]:
        """Return the containers whose last request has no reply: a runtime deletes them."""
        return [container for container, (sign, _) in self._last().items() if sign == _SENT]

    def held(self) -> dict[str, list[str]]:
        """Return the addresses of each container that was added and not deleted."""
        return {container: addresses for container, (sign, addresses) in self._last().items() if sign == ADD}

    def _last(self) -> dict[str, tuple[str, list[str]]]:
        found: dict[str, tuple[str, list[str]]] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            sign, container, *rest = line.split(" ")
            found[container] = (sign, rest[0].split(",") if rest else [])
        return found
