"""Profiles of namespaces and service accounts, in both names profiles."""

import pytest

from svc.controllers.copies.copied_kind import Json
from svc.controllers.copies.profiles import AccountProfiles, NamespaceProfiles
from svc.model.keys import ResourceKey
from svc.names import DEFAULT
from svc.netconf.names_profiles import load_profile

CALICO = load_profile("calico")
ALLOW_ALL = {"action": "Allow", "source": {}, "destination": {}}


def original(name: str, namespace: str = "", **labels: str) -> Json:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


def test_profile_of_a_namespace() -> None:
    found = NamespaceProfiles(CALICO).translate(original("blue", team="a")).spec
    assert found == {
        "ingress": [ALLOW_ALL],
        "egress": [ALLOW_ALL],
        "labelsToApply": {"pcns.team": "a", "pcns.projectcalico.org/name": "blue"},
    }


def test_profile_of_a_service_account() -> None:
    found = AccountProfiles(DEFAULT).translate(original("web", "blue", app="a")).spec
    assert found == {"labelsToApply": {"pcsa.app": "a", "pcsa.svc.internal/name": "web"}}


def test_objects_without_labels() -> None:
    kind = NamespaceProfiles(DEFAULT)
    assert kind.translate({"metadata": {"name": "x"}}).spec["labelsToApply"] == {"pcns.svc.internal/name": "x"}


def test_label_cannot_replace_the_name() -> None:
    found = NamespaceProfiles(DEFAULT).translate({"metadata": {"name": "x", "labels": {"svc.internal/name": "y"}}})
    assert found.spec["labelsToApply"] == {"pcns.svc.internal/name": "x"}


@pytest.mark.parametrize(
    ("kind", "source", "name", "path"),
    [
        (NamespaceProfiles, original("blue"), "kns.blue", "/api/v1/namespaces/blue"),
        (AccountProfiles, original("web", "blue"), "ksa.blue.web", "/api/v1/namespaces/blue/serviceaccounts/web"),
        (AccountProfiles, original("a.b", "blue"), "ksa.blue.a.b", "/api/v1/namespaces/blue/serviceaccounts/a.b"),
    ],
)
def test_key_leads_back_to_the_original(
    kind: type[NamespaceProfiles | AccountProfiles], source: Json, name: str, path: str
) -> None:
    copied = kind(DEFAULT)
    assert copied.key(source) == ResourceKey("Profile", name)
    assert copied.original_path(copied.key(source)) == path
    assert copied.owns(copied.key(source))


@pytest.mark.parametrize("name", ["mine", "kns", "kns.", "ksa.", "ksa.half", "ksa..web", "knp.default.x"])
def test_profiles_of_others_are_not_owned(name: str) -> None:
    assert not any(kind(DEFAULT).owns(ResourceKey("Profile", name)) for kind in (NamespaceProfiles, AccountProfiles))
