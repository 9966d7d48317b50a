#!/usr/bin/env python3
"""List the places that may break the rules of docs/glossary.md, in comments, docstrings, help texts and Markdown.

A pattern finds a word, not a bad sentence: look at each line. The exit status is always 0.
"""

import argparse
import io
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "bare pronoun as actor": r"\b(?:[Ww]hoever|[Ww]hatever|[Ss]omebody|[Nn]obody|[Ee]verybody)\b",
        "person for a program": r"\b(?:he|him|his)\b",
        "archaic adverb": r"\b(?:anew|meanwhile|lest|hence|thereby|therein|hitherto)\b",
        "negated noun": r"\b(?:is|are|was|were) no(?:ne|body|thing)?\b(?! longer| more| less)",
        "told, heard, owed": r"\b(?:is|are|be|being|was) (?:told|heard|owed|spoken)\b",
        "private metaphor": r"\b(?:crew|lobby|herd|pasture|cattle|shelf|strays?|debts?|wishes)\b",
        "want of": r"\b[Ww]ant of\b|\b[Ww]ant passes\b",
        "inverted condition": r"^[^a-z]*(?:Where|What|Who) [a-z]+(?: [a-z]+){1,12},",
    }.items()
}
QUOTES_BAD_EXAMPLES = ("docs/glossary.md", "tools/prose.py")
HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")

Line = tuple[int, str]


class EveryLine:
    """A set of line numbers that contains all of them."""

    def __contains__(self, number: object) -> bool:
        return True


def markdown(text: str) -> Iterator[Line]:
    """Yield the lines outside of code blocks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def python(text: str) -> Iterator[Line]:
    """Yield comments, and strings of more than one word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            yield from enumerate(token.string.splitlines(), token.start[0])


def native(text: str) -> Iterator[Line]:
    """Yield comments and docstrings of Cython and C, with the code beside them."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if inside or re.search(r'#|//|/\*|"""', line):
            yield number, line
        if line.count('"""') == 1 or ("/*" in line) != ("*/" in line):
            inside = not inside


READERS: Mapping[str, Callable[[str], Iterator[Line]]] = {
    ".md": markdown, ".py": python, ".pyi": python, ".pyx": native, ".pxd": native, ".c": native, ".h": native,
}  # fmt: skip


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def added_since(base: str) -> dict[str, set[int]]:
    """Return the numbers of the lines of each file that were added since a revision."""
    lines: dict[str, set[int]] = defaultdict(set)
    path = ""
    for line in git("diff", "-U0", "--merge-base", base):
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := HUNK.match(line):
            first = int(hunk[1])
            lines[path].update(range(first, first + int(hunk[2] or 1)))
    return lines


def findings(path: str, wanted: Container[int]) -> Iterator[tuple[str, Line]]:
    """Yield the name of a pattern, with the line that matches it."""
    for number, line in READERS[Path(path).suffix]((ROOT / path).read_text()):
        if number in wanted:
            yield from ((name, (number, line)) for name, pattern in PATTERNS.items() if pattern.search(line))


def main() -> None:
    """Print the findings, or count them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", metavar="REVISION", help="only lines that were added since then")
    parser.add_argument("--count", action="store_true", help="only the number of findings of each pattern")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="tracked files or directories; default: all")
    options = parser.parse_args()
    added = added_since(options.base) if options.base else None
    counts: Counter[str] = Counter()
    for path in git("ls-files", "--", *options.paths):
        if path in QUOTES_BAD_EXAMPLES or Path(path).suffix not in READERS or not (ROOT / path).exists():
            continue
        for name, (number, line) in findings(path, EveryLine() if added is None else added.get(path, ())):
            counts[name] += 1
            if not options.count:
                print(f"{path}:{number}: {name}: {line.strip()[:140]}")
    for name, count in counts.most_common() if options.count else ():
        print(f"{count:6} {name}")


if __name__ == "__main__":
    main()
