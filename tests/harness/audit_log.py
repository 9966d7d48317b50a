"""The rights that the accounts of svc have, and those that the audit log of an API server shows as used or denied."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.controllers_rights import Right
from harness.kube import NODES
from svc.deploy.manifests.settings import SYSTEM_NAMESPACE

Json = dict[str, Any]

_PREFIX = f"system:serviceaccount:{SYSTEM_NAMESPACE}:"
_ROLES = ("Role", "ClusterRole")


def granted(documents: Iterable[Json]) -> dict[str, set[Right]]:
    """Return the rights of each account by the roles and bindings among the objects of the manifests."""
    every = list(documents)
    roles = {(each["kind"], each["metadata"]["name"]): each for each in every if each["kind"] in _ROLES}
    found: dict[str, set[Right]] = defaultdict(set)
    for each in every:
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            role = roles[each["roleRef"]["kind"], each["roleRef"]["name"]]
            for subject in each["subjects"]:
                found[subject["name"]] |= set(rights_of(role))
    return dict(found)


def rights_of(role: Json) -> Iterator[Right]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Right(group, resource, verb, role["metadata"].get("namespace", ""))


class AuditLog:
    """The requests of the accounts of svc, and of the user of nodes."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines() if path.exists() else ()  # the first request makes the file
        events = map(json.loads, lines)
        self._events = [event for event in events if event["user"]["username"].startswith((_PREFIX, NODES))]

    def denied(self) -> set[str]:
        """Return the requests that were denied and never allowed, each once.

        A role takes effect some time after it was made, and at the end of a test it may be gone before its program."""
        answers: dict[bool, set[str]] = {True: set(), False: set()}
        for event in self._events:
            is_denied = event.get("responseStatus", {}).get("code") == 403
            path, *_ = event["requestURI"].partition("?")
            answers[is_denied].add(f"{_account(event)}: {event['verb']} {path}")
        return answers[True] - answers[False]

    def used(self, account: str, rights: set[Right]) -> set[Right]:
        """Return those of the rights that allow a request which the account has made."""
        made = {_right(event) for event in self._events if _account(event) == account and "objectRef" in event}
        return {right for right in rights if any(_allows(right, each) for each in made)}


def _account(event: Json) -> str:
    return str(event["user"]["username"]).removeprefix(_PREFIX)


def _right(event: Json) -> Right:
    about = event["objectRef"]
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    return Right(about.get("apiGroup", ""), resource, event["verb"], about.get("namespace", ""))


def _allows(right: Right, request: Right) -> bool:
    return right[:3] == request[:3] and right.namespace in ("", request.namespace)
