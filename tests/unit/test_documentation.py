"""Paths and links in the documents lead to existing files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:\.ci|_core|bench|build|docs|examples|requirements|svc|tests|tools|wheels)/[\w./-]*)`")
MADE = ("build/",)  # not in the repository


FOLDERS = ("deploy", "docs", "examples", "requirements", "tests", "wheels")


def documents() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.md")


@pytest.mark.parametrize("document", sorted(documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    targets = [target for target in LINK.findall(document.read_text()) if "://" not in target]
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md", "docs/threats.md"])
def test_named_paths_exist(document: str) -> None:
    """These documents name paths in full."""
    named = PATH.findall((ROOT / document).read_text())
    assert named
    assert [path for path in named if not path.startswith(MADE) and not (ROOT / path).exists()] == []


def test_quoted_messages_exist() -> None:
    """Words in italics are of messages that svc or svcctl gives."""
    sources = "\n".join(path.read_text() for path in (*(ROOT / "svc").rglob("*.py"), *(ROOT / "_core").glob("*.c")))
    quoted = re.findall(r"\*([^*|\n]+)\*", (ROOT / "docs" / "troubleshooting.md").read_text())
    assert quoted
    assert [each for each in quoted if each not in sources] == []
