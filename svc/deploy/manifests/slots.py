"""Rules of the slots for a policy agent and a data-path proxy, which are not part of svc."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from svc.deploy.manifests.settings import Settings
from svc.deploy.server_apply import describe, identity_of
from svc.model.errors import CallerError
from svc.model.field_errors import display

Json = dict[str, Any]

_NAME: Final = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def require_slots(settings: Settings, containers: Sequence[str], own: Sequence[Json]) -> None:
    """Raise CallerError if a slot has a name of svc, of its `containers` or `own` objects, or if no server would take it."""
    if settings.policy_agent is not None:
        _require_container(settings.policy_agent, containers, _volumes_in(own))
    taken = set(map(identity_of, own))
    for document in settings.proxy:
        if _identity_of(document) in taken:
            raise CallerError(f"--proxy: {describe(document)} is an object of svc", details="give the object another name")


def _require_container(given: Mapping[str, Any], containers: Sequence[str], volumes: Sequence[str]) -> None:
    name, image, mounts = given.get("name"), given.get("image"), given.get("volumeMounts") or []
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        rule = "give up to 63 lower-case letters, digits and '-', a letter or digit first and last"
        raise CallerError(f"--policy-agent: name = {display(name)} cannot name a container", details=rule)
    if name in containers:
        raise CallerError(f"--policy-agent: name = {name!r} is a container of svc", details="give the container another name")
    if not isinstance(image, str) or not image:
        raise CallerError(f"--policy-agent: image = {display(image)} is not the name of an image", details="give a text")
    if not isinstance(mounts, list) or not all(isinstance(each, dict) for each in mounts):
        raise CallerError("--policy-agent: volumeMounts is not a list of objects", details="give name and mountPath of each")
    for volume in (each.get("name") for each in mounts):
        if volume not in volumes:
            msg = f"--policy-agent: volumeMounts has {display(volume)}, which is not a volume of the DaemonSet"
            raise CallerError(msg, details=f"give some of {', '.join(volumes)}")


def _volumes_in(own: Sequence[Json]) -> list[str]:
    pods = [each["spec"]["template"]["spec"] for each in own if each["kind"] == "DaemonSet"]
    return [volume["name"] for pod in pods for volume in pod["volumes"]]


def _identity_of(document: Json) -> tuple[str, str]:
    try:
        return identity_of(document)
    except CallerError as error:
        error.msg = f"--proxy: {error.msg}"
        raise
