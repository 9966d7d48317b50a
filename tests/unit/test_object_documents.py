"""Documents of several kinds in files, folders and standard input."""

import json
from pathlib import Path

import pytest
import yaml

from harness.documents import ENDPOINT, RESERVATION, document, pool, text
from svc.admin import documents, kinds
from svc.admin.manifest import MAX_DEPTH
from svc.model.errors import CallerError
from svc.names import DEFAULT

TABLE = kinds.table(DEFAULT, "embedded")


def read(*contents: str) -> documents.Given:
    files = [(f"f{number}.yaml", content.encode()) for number, content in enumerate(contents, 1)]
    return documents.read(files, TABLE, DEFAULT)


def problems(*contents: str) -> list[str]:
    return read(*contents)[1]


def names(paths: list[str], *, recursive: bool = False, stdin: bytes = b"") -> list[str]:
    return [name for name, _ in documents.sources(paths, lambda: stdin, recursive=recursive)]


def test_files_folders_and_standard_input_are_read_in_order(tmp_path: Path) -> None:
    """Other files of a folder are not documents."""
    for name in ("b.yaml", "a.json", "c.yml", "notes.txt", "inner/d.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text(pool()))
    found = [str(tmp_path / name) for name in ("a.json", "b.yaml", "c.yml")]
    assert names([str(tmp_path)]) == found
    assert names([str(tmp_path)], recursive=True) == [*found, str(tmp_path / "inner/d.yaml")]
    assert names([found[2], "-", found[0]]) == [found[2], "<stdin>", found[0]]
    (tmp_path / "empty").mkdir()
    for paths in (["-", "-"], [str(tmp_path / "empty")], [str(tmp_path / "none.yaml")]):
        with pytest.raises(CallerError):
            names(paths)


def test_lists_have_objects_of_several_kinds() -> None:
    """Lists may contain lists."""
    inner = {"apiVersion": "v1", "kind": "List", "items": [RESERVATION]}
    whole = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [pool(), inner, ENDPOINT]}
    wanted, found = read(text(whole), text(document("IPAMConfiguration", "default", {})))
    assert found == []
    assert [each.kind.name for each in wanted] == ["IPPool", "IPReservation", "HostEndpoint", "IPAMConfiguration"]
    assert wanted[1].place == "f1.yaml: document 1: items[1].items[0]: "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("kind: IPPool", "f1.yaml: document 1: apiVersion is missing: give svc.internal/v3"),
        (text(pool(), {"a": 1}), "f1.yaml: document 2: kind is missing: give one of IPPool,"),
        (text(pool() | {"kind": "ippool"}), "f1.yaml: document 1: kind = 'ippool' is not known: give one of IPPool,"),
        (text(pool() | {"apiVersion": "projectcalico.org/v3"}), "is not the group of these names: give svc.internal/v3 or"),
        (text(pool() | {"apiVersion": 3}), "apiVersion = 3 is not the group"),
        (text([pool(), 3]), "f1.yaml: document 1: [1] = 3 is a number: give an object with apiVersion"),
        (text("words"), "f1.yaml: document 1: document = 'words' is a string"),
        (text(pool() | {"sepc": 1}), "f1.yaml: document 1: sepc = 1 is not known"),
        (text(pool() | {"metadata": "p"}), "metadata = 'p' is a string: give an object"),
        (text(pool() | {"metadata": {"name": "p", "namespace": "n"}}), "metadata.namespace = 'n' is not known"),
        (text(pool() | {"metadata": {"name": "p", "labels": {"a": 1}}}), "metadata.labels.a = 1 is a number"),
        (text(pool()) + "kind: again\n", "f1.yaml: key 'kind' is given twice, in lines"),
        ("a: [", "f1.yaml is neither YAML nor JSON"),
        ("a: !!python/name:os.system x", "f1.yaml: line 1 has a value of type"),
        ("\x00", "f1.yaml is neither YAML nor JSON"),
        ('{"kind": "\\ud83d"}', "f1.yaml: line 1 has half of a surrogate pair: write both halves"),
        (f"a: {'[' * (MAX_DEPTH + 1)}{']' * (MAX_DEPTH + 1)}", "f1.yaml is nested too deeply"),
        ("{a: " * 20_000, "f1.yaml is nested too deeply"),
    ],
    ids=str,
)
def test_errors_name_file_document_and_field(content: str, message: str) -> None:
    found = problems(content)
    assert any(message in line for line in found), found


def test_characters_may_be_written_as_two_escapes() -> None:
    """JSON writes characters beyond the first 65,536 in this way."""
    document = pool() | {"metadata": {"name": "pods", "annotations": {"mark": "\U0001f600"}}}
    (found,), errors = read(json.dumps(document))
    assert errors == []
    assert found.resource.metadata["annotations"] == {"mark": "\U0001f600"}


def test_errors_of_all_files_are_found() -> None:
    """Valid documents beside them are returned, to find their other errors too."""
    wanted, found = read(text(pool(), {"kind": "X"}), "a: [", text(RESERVATION), "a: 1\na: 2")
    assert [each.kind.name for each in wanted] == ["IPPool", "IPReservation"]
    assert [line.split(":")[0].split(" ")[0] for line in found] == ["f1.yaml", "f2.yaml", "f4.yaml"]


@pytest.mark.parametrize("content", ["---\n---\n", "", "# nothing\n", "null\n", "[]", "kind: List\nitems: []"])
def test_no_document_at_all_is_an_error(content: str) -> None:
    """An empty file beside others is not."""
    with pytest.raises(CallerError, match=r"f1\.yaml: no document"):
        read(content)
    assert problems(content, text(pool())) == []


def test_aliases_cannot_multiply_without_bound() -> None:
    """The text is small, and its values would fill the memory."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "with its aliases" in problems("\n".join(lines))[0]
    assert "nested" in problems("a: &a [*a]")[0] or "kind is missing" in problems("a: &a [*a]")[0]


def test_fields_that_a_datastore_sets_are_ignored() -> None:
    """The revision is compared with that of the stored object."""
    metadata = {"uid": "u", "generation": 2, "finalizers": ["f"], "selfLink": "x", "resourceVersion": "7", "generateName": "g"}
    wanted, found = read(text(pool() | {"metadata": {"name": "p", **metadata}, "status": {"conditions": []}}))
    assert (found, wanted[0].revision, wanted[0].resource.metadata) == ([], "7", {"name": "p"})


def test_metadata_of_the_backing_group_is_checked() -> None:
    broken = {"name": "p", "annotations": {f"{DEFAULT.label_prefix}/metadata": "{"}}
    found = problems(text(pool() | {"apiVersion": DEFAULT.crd_api_version, "metadata": broken}))
    assert "metadata" in found[0]
    assert "cannot be read" in found[0]


def test_only_object_of_its_kind_needs_no_name() -> None:
    wanted, found = read(yaml.safe_dump({"apiVersion": DEFAULT.api_version, "kind": "IPAMConfig", "spec": {}}))
    assert (found, wanted[0].resource.name) == ([], "default")
