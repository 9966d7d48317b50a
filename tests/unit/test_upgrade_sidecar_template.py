"""Templates of sidecars: the image of a container in a text with directives, and the versions of the mesh."""

import pytest

from svc.model.errors import CallerError
from svc.upgrade.sidecar_template import image_of, is_known, mesh_version, template_of

TEMPLATES = {
    "name first": "  - name: side\n    args: [a]\n    image: r/side:1\n",
    "image first": "  - image: 'r/side:1'\n    name: \"side\"\n",
    "between others": "- name: a\n  image: a:1\n- args:\n  - name\n  image: r/side:1  # x\n  name: side\n- image: b:1\n",
    "directives": "{{- if x }}\n- name: side\n{{- end }}\n  image: r/side:1\n",
    "variables": "- name: side\n  env:\n  - name: side\n    value: x\n  image: r/side:1\n",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_image(name: str) -> None:
    assert image_of(TEMPLATES[name], "side") == "r/side:1"


@pytest.mark.parametrize(
    "text", ["", "- name: other\n  image: x\n", "- name: side\n- name: b\n  image: b:1\n", "- name: side\nimage: x:1\n"]
)
def test_no_image(text: str) -> None:
    assert image_of(text, "side") == ""


@pytest.mark.parametrize("version", ["1.1.0", "1.1.17", "1.4.2", "1.6", "1.10.2", "1.15.0-distroless"])
def test_known_version(version: str) -> None:
    assert is_known(version)


@pytest.mark.parametrize("version", ["", "1", "1.4.3", "1.5.0", "1.16.1", "1.11", "2.1.0"])
def test_unknown_version(version: str) -> None:
    assert not is_known(version)


@pytest.mark.parametrize("values", [None, "", "[", "{}", '{"global": {}}', "text", "[1]"])
def test_mesh_without_a_version(values: str | None) -> None:
    assert mesh_version({"data": {"values": values}}) == ""


def test_mesh_version() -> None:
    assert mesh_version({"data": {"values": '{"global": {"tag": "1.10.2"}}'}}) == "1.10.2"


@pytest.mark.parametrize("documents", [[], [{}], [{"data": None}], [{"data": {"config": ""}}], [{"data": {"config": "a"}}] * 2])
def test_file_without_a_template(documents: list[dict[str, object]]) -> None:
    with pytest.raises(CallerError, match=r"is not one object with data\.config"):
        template_of(documents)
