"""Sets of fields as managedFields has them, what adoption removes, and edits of other managers."""

from typing import Any

import pytest

from svc.names import DEFAULT
from svc.upgrade.adoption import EDITS, holds, leftovers, operations, remove_all
from svc.upgrade.field_sets import MISSING, has, leaves, put, remove, show, split, union, value_at, wholes_of
from svc.upgrade.former_managers import giving_back, giving_back_at, managers_at
from svc.upgrade.manual_edits import find_edits, with_carried, without_carried
from svc.upgrade.object_states import differences, digest, essence, last_applied
from svc.upgrade.published_base import _edits

Json = dict[str, Any]

CONTAINER = 'k:{"name":"agent"}'
IMAGE = ("f:spec", "f:containers", CONTAINER, "f:image")


def document(**content: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "resourceVersion": "1", "uid": "u"},
        "data": content,
    }


def managed(live: Json, *managers: tuple[str, str, Json]) -> Json:
    live["metadata"]["managedFields"] = [
        {"manager": name, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
        for name, operation, fields in managers
    ]
    return live


def data(*names: str) -> Json:
    return {"f:data": {".": {}, **{f"f:{name}": {} for name in names}}}


def test_leaves_of_lists_and_fields() -> None:
    fields: Json = {"f:spec": {"f:containers": {CONTAINER: {".": {}, "f:image": {}, "f:args": {}}}}, "f:data": {}}
    assert list(leaves(fields)) == [IMAGE, (*IMAGE[:-1], "f:args"), ("f:data",)]


def test_paths_are_shown_as_people_write_them() -> None:
    assert show(IMAGE) == "spec.containers[name=agent].image"
    assert show(("f:metadata", "f:annotations", "f:a.b/c")) == "metadata.annotations[a.b/c]"
    assert show(("f:set", 'v:"x"')) == 'set["x"]'


def test_values_of_items_by_their_keys() -> None:
    found: Json = {"spec": {"containers": [{"name": "other"}, {"name": "agent", "image": "i"}], "set": ["x", "y"]}}
    assert value_at(found, IMAGE) == "i"
    assert value_at(found, ("f:spec", "f:containers", 'k:{"name":"none"}')) is MISSING
    remove(found, IMAGE)
    remove(found, ("f:spec", "f:set", 'v:"x"'))
    remove(found, ("f:spec", "f:nothing", "f:below"))
    assert found == {"spec": {"containers": [{"name": "other"}, {"name": "agent"}], "set": ["y"]}}


def test_port_without_protocol_has_the_default() -> None:
    ports = [{"port": 80}, {"port": 81, "protocol": "UDP"}]
    assert value_at({"ports": ports}, ("f:ports", 'k:{"port":80,"protocol":"TCP"}')) == {"port": 80}
    assert value_at({"ports": ports}, ("f:ports", 'k:{"port":81,"protocol":"TCP"}')) is MISSING


def test_a_leaf_stands_for_what_is_below() -> None:
    fields = union(data("a"), {"f:args": {}})
    assert has(fields, ("f:data", "f:a"))
    assert has(fields, ("f:args", "i:0"))
    assert not has(fields, ("f:data", "f:b"))
    assert not has(fields, ("f:other",))


def test_adoption_moves_fields_of_former_managers() -> None:
    live = managed(
        document(a="1", b="2", c="3"),
        ("kubectl-client-side-apply", "Update", data("a", "b")),
        ("kubectl-edit", "Update", data("c")),
        ("svcctl", "Apply", data("a")),
    )
    live["metadata"]["annotations"] = {last_applied(DEFAULT): "{}"}
    fields, annotation = operations(live, DEFAULT)
    assert [(each["manager"], each["operation"]) for each in fields["value"]] == [
        ("kubectl-edit", "Update"),
        ("svcctl", "Apply"),
    ]
    assert fields["value"][1]["fieldsV1"] == data("a", "b")
    assert annotation["path"] == "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration"


def test_nothing_is_adopted_twice() -> None:
    assert operations(managed(document(a="1"), ("svcctl", "Apply", data("a"))), DEFAULT) == []


def test_leftovers_are_fields_that_nobody_else_has() -> None:
    live = managed(
        document(a="1", b="2", c="3"),
        ("kubectl-client-side-apply", "Update", data("a", "b", "c")),
        ("kubectl-edit", "Update", data("c")),
    )
    applied = managed(document(a="1", b="2", c="3"), ("svcctl", "Apply", data("a")))
    found = leftovers(live, applied)
    assert found == {"f:data": {"f:b": {}}}
    remove_all(applied, found)
    assert applied["data"] == {"a": "1", "c": "3"}


@pytest.mark.parametrize(
    ("base", "new", "carried"),
    [
        (document(mtu="1500"), document(mtu="1500"), True),  # the new manifest changes nothing
        (document(mtu="1500"), document(mtu="1440"), False),  # both change the field
        (None, document(mtu="1500"), False),  # nobody knows who changed it
        (document(), document(mtu="1500"), False),  # the former manifest did not have it
    ],
)
def test_three_way_merge(base: Json | None, new: Json, carried: bool) -> None:
    live = managed(document(mtu="1400"), ("kubectl-edit", "Update", data("mtu")), ("ours", "Apply", data("mtu")))
    applied = managed(new, ("svcctl", "Apply", data("mtu")))
    (edit,) = find_edits(live, applied, base)
    assert edit.is_carried is carried
    assert edit.managers == ("kubectl-edit", "ours")
    wanted = without_carried(document(mtu="1500", other="x"), [edit])
    assert wanted["data"] == ({"other": "x"} if carried else {"mtu": "1500", "other": "x"})


def test_edit_that_the_manifest_has_too_is_none() -> None:
    live = managed(document(mtu="1400"), ("kubectl-edit", "Update", data("mtu")))
    assert list(find_edits(live, managed(document(mtu="1400"), ("svcctl", "Apply", data("mtu"))), None)) == []


def test_essence_leaves_out_what_servers_and_controllers_write() -> None:
    one, other = document(a="1"), document(a="1") | {"status": {"x": 1}}
    other["metadata"] |= {"resourceVersion": "2", "generation": 3, "annotations": {"deployment.kubernetes.io/revision": "4"}}
    assert digest(essence(one, DEFAULT)) == digest(essence(other, DEFAULT))
    assert digest(essence(one, DEFAULT)) != digest(essence(document(a="2"), DEFAULT))


def test_differences_name_items_by_their_names() -> None:
    before = {"spec": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "args": ["x"]}}
    after = {"spec": {"env": [{"name": "B", "value": "3"}, {"name": "A", "value": "1"}], "args": ["y"]}}
    found = {field: (old, new) for field, old, new in differences(before, after)}
    assert found == {"spec.env[B].value": ("2", "3"), "spec.args": (["x"], ["y"])}


VARIABLE = 'k:{"name":"MINE"}'
ENV = ("f:spec", "f:containers", CONTAINER, "f:env")


def pod(*variables: str) -> Json:
    env = [{"name": name, "value": name.lower()} for name in variables]
    return {"spec": {"containers": [{"name": "agent", "image": "i", "env": env}]}}


def test_chosen_fields_are_split_off_with_their_items() -> None:
    """An item of a list goes with its last field. What is at or below a chosen path goes as well."""
    item: Json = {".": {}, "f:name": {}, "f:value": {}}
    fields: Json = {"f:spec": {"f:containers": {CONTAINER: {".": {}, "f:image": {}, "f:env": {".": {}, VARIABLE: item}}}}}
    taken, rest = split(fields, [(*ENV, VARIABLE)])
    assert taken == {"f:spec": {"f:containers": {CONTAINER: {"f:env": {".": {}, VARIABLE: item}}}}}
    assert rest == {"f:spec": {"f:containers": {CONTAINER: {".": {}, "f:image": {}}}}}
    assert split(fields, []) == ({}, fields)
    whole, nothing = split(fields, [IMAGE, (*ENV, VARIABLE)])
    assert (whole, nothing) == (fields, {})


def test_values_are_put_where_the_source_has_them() -> None:
    target = pod("FIRST", "LAST")
    put(target, (*ENV, VARIABLE), pod("FIRST", "MINE", "LAST"))
    assert target == pod("FIRST", "MINE", "LAST")
    put(target, IMAGE, {"spec": {"containers": [{"name": "agent", "image": "mirror"}]}})
    assert target["spec"]["containers"][0]["image"] == "mirror"
    bare: Json = {}
    put(bare, (*ENV, VARIABLE, "f:value"), pod("FIRST", "MINE"))
    assert bare == {"spec": {"containers": [{"name": "agent", "env": [{"name": "MINE", "value": "mine"}]}]}}


def test_wholes_of_a_path() -> None:
    """The object comes before what is in it."""
    assert wholes_of(("f:data", "f:x")) == [("f:data",), ("f:data", "f:x")]


def test_removed_object_is_one_edit() -> None:
    """It comes back as a whole or not at all, also if the new manifest changes one of its fields."""
    probe: Json = {"exec": {"command": ["true"]}, "periodSeconds": 10}
    fields: Json = {"f:spec": {"f:probe": {"f:exec": {"f:command": {}}, "f:periodSeconds": {}}}}
    managed = [{"manager": "svcctl", "operation": "Apply", "apiVersion": "v1", "fieldsV1": fields}]
    base: Json = {"spec": {"probe": probe}}
    live: Json = {"metadata": {}, "spec": {}}
    (edit,) = find_edits(live, {"metadata": {"managedFields": managed}} | base, base, is_recorded=True)
    assert (str(edit), edit.is_carried) == ("spec.probe was removed, stays out", True)
    newer = {"spec": {"probe": probe | {"periodSeconds": 20}}}
    (edit,) = find_edits(live, {"metadata": {"managedFields": managed}} | newer, base, is_recorded=True)
    assert (edit.path, edit.is_carried) == (("f:spec", "f:probe"), False)
    assert without_carried(newer, [edit]) == newer


def test_removed_fields_are_edits_if_a_run_has_recorded_them() -> None:
    """A carried removal stays out of what is applied; another one is in conflict."""
    fields: Json = {
        "f:spec": {"f:containers": {CONTAINER: {".": {}, "f:env": {VARIABLE: {".": {}, "f:name": {}, "f:value": {}}}}}}
    }
    live, applied = pod() | {"metadata": {}}, managed(pod("MINE") | {"metadata": {}}, ("svcctl", "Apply", fields))
    assert list(find_edits(live, applied, pod("MINE"))) == []
    (edit,) = find_edits(live, applied, pod("MINE"), is_recorded=True)
    assert (edit.path, edit.live, edit.is_carried) == ((*ENV, VARIABLE), MISSING, True)
    assert str(edit) == "spec.containers[name=agent].env[name=MINE] was removed, stays out"
    assert without_carried(pod("MINE"), [edit]) == with_carried(pod("MINE"), [edit], live) == pod()
    other = pod("MINE")
    other["spec"]["containers"][0]["env"][0]["value"] = "former"
    (conflict,) = find_edits(live, applied, other, is_recorded=True)
    assert not conflict.is_carried
    assert "was removed; the manifest has {'name': 'MINE', 'value': 'mine'}, the former one: {" in str(conflict)


def test_fields_go_back_to_those_who_had_them_alone() -> None:
    """Managers of the status stay, and so does what svcctl had before."""
    status: tuple[str, str, Json] = ("kubelet", "Update", {"f:status": {}})
    target = managed(document(a="1", b="1"), ("gitops", "Apply", data("a")), ("svcctl", "Apply", data("b")))
    live = managed(document(a="1", b="1"), status, ("svcctl", "Apply", data("b")), ("svcctl", "Update", data("a")))
    (operation,) = giving_back(live, target)
    live["metadata"]["managedFields"] = operation["value"]
    found = [(each["manager"], each["operation"]) for each in live["metadata"]["managedFields"]]
    assert found == [("kubelet", "Update"), ("gitops", "Apply"), ("svcctl", "Apply")]
    assert giving_back(live, target) == []
    shared = managed(document(a="1"), ("gitops", "Apply", data("a")), ("svcctl", "Apply", data("a")))
    assert giving_back(live, shared) == []


def test_some_fields_go_back_while_others_stay() -> None:
    """A manager keeps the fields that it has got since elsewhere, and svcctl those that it had before."""
    before = managed(document(a="1", b="1"), ("gitops", "Apply", data("a")), ("svcctl", "Apply", data("b")))
    paths = [("f:data", "f:a"), ("f:data", "f:b")]
    former = managers_at(before, paths)
    live = managed(
        document(a="1", b="1", c="1"),
        ("gitops", "Apply", data("c")),
        ("svcctl", "Update", data("a")),
        ("svcctl", "Apply", data("b")),
    )
    (operation,) = giving_back_at(live, former, paths)
    live["metadata"]["managedFields"] = operation["value"]
    found = {(each["manager"], each["operation"]): each["fieldsV1"] for each in live["metadata"]["managedFields"]}
    assert found == {("gitops", "Apply"): data("a", "c"), ("svcctl", "Apply"): data("b")}
    assert giving_back_at(live, former, paths) == []
    assert giving_back_at(live, [], paths) == [], "a former build has saved no managers"


def test_carried_edits_of_a_manifest_get_a_manager_of_their_own() -> None:
    """They join those of an earlier run; all other fields of appliers move to svcctl."""
    live = managed(
        document(a="1", b="1", c="1"), (EDITS, "Update", data("c")), ("kubectl-client-side-apply", "Update", data("a", "b"))
    )
    assert holds(live, [("f:data", "f:a")])
    assert not holds(live, [("f:data", "f:c")])
    (operation,) = operations(live, DEFAULT, [("f:data", "f:a")])
    found = {each["manager"]: set(each["fieldsV1"]["f:data"]) - {"."} for each in operation["value"]}
    assert found == {"svcctl": {"f:b"}, EDITS: {"f:a", "f:c"}}


def test_no_text_about_an_edit_has_what_a_secret_keeps() -> None:
    def secret(value: str, *managers: tuple[str, str, Json]) -> Json:
        return managed({"apiVersion": "v1", "kind": "Secret", "metadata": {}, "data": {"key": value}}, *managers)

    fields: Json = {"f:data": {"f:key": {}}}
    live = secret("bGl2ZQ==", ("kubectl-edit", "Update", fields))
    for base in ("bmV3", "YmFzZQ=="):
        (edit,) = find_edits(live, secret("bmV3", ("svcctl", "Apply", fields)), secret(base))
        assert str(edit).startswith("data.key = (hidden), set by kubectl-edit")
        assert not any(value in str(edit) for value in ("bGl2ZQ==", "bmV3", "YmFzZQ=="))


def test_item_that_was_removed_comes_back_as_a_whole() -> None:
    """The new manifest has changed the image of a container that a user has removed, and not its variable."""

    def pod(image: str) -> Json:
        agent = {"name": "agent", "image": image, "env": [{"name": "MINE", "value": "1"}]}
        return {"spec": {"containers": [agent]}, "metadata": {}}

    fields: Json = {CONTAINER: {"f:image": {}, "f:env": {VARIABLE: {"f:value": {}}}}}
    live: Json = {"spec": {"containers": []}, "metadata": {}}
    new = managed(pod("2"), ("svcctl", "Apply", {"f:spec": {"f:containers": fields}}))
    for base, is_carried in ((pod("1"), False), (pod("2"), True)):
        (edit,) = find_edits(live, new, base, is_recorded=True)
        assert (edit.path, edit.is_carried) == (("f:spec", "f:containers", CONTAINER), is_carried)
        (edit,) = _edits(live, new, base, new, DEFAULT)
        assert (edit.path, edit.is_carried) == (("f:spec", "f:containers", CONTAINER), is_carried)
        assert without_carried(pod("2"), [edit])["spec"]["containers"] == ([] if is_carried else pod("2")["spec"]["containers"])
