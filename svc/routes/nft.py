"""Calls of the program nft."""

import json
import shutil
import subprocess
from typing import Any, Final

from svc.values import dataclass

PROGRAM: Final = "nft"
_SECONDS: Final = 10.0


class NftProblem(Exception):
    """nft is missing, failed or did not end. The text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of nftables, or of an iptables program of the older kind. Those of the newer kind are in nftables."""

    family: str
    table: str
    name: str
    kind: str = ""  # of a chain at a hook: filter, nat, route
    hook: str = ""
    policy: str = ""


def is_installed() -> bool:
    """Return True if the program is in the search path."""
    return shutil.which(PROGRAM) is not None


def run(*arguments: str, stdin: str = "") -> str:
    """Return the output. Raise NftProblem."""
    try:
        done = subprocess.run([PROGRAM, *arguments], input=stdin, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise NftProblem("the program nft is not installed, so that svc-routes can neither read nor write NAT") from None
    except subprocess.TimeoutExpired:
        raise NftProblem(f"nft did not end in {_SECONDS:.0f} s") from None
    except OSError as failure:
        raise NftProblem(f"nft cannot be started: {failure.strerror}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise NftProblem(f"nft failed: {lines[0]}")
    return done.stdout


def chains() -> list[Chain]:
    """Return all chains of the namespace. Raise NftProblem."""
    try:
        found = json.loads(run("-j", "list", "chains")).get("nftables", [])
    except ValueError:
        raise NftProblem("nft printed no JSON") from None
    return [_chain(item["chain"]) for item in found if "chain" in item]


def _chain(item: dict[str, Any]) -> Chain:
    kind, hook, policy = (str(item.get(name, "")) for name in ("type", "hook", "policy"))
    return Chain(item["family"], item["table"], item["name"], kind, hook, policy)
