"""Label selectors of the command line, in the form of kubectl or in that of pools.

rack=a,zone!=b,env in (test,dev),tier notin (web),has-gpu,!old
rack == "a" && zone != "b" && env in {"test", "dev"} && has(has-gpu)
"""

import re
from typing import Final

from svc.model import selector
from svc.model.selector import Selector, SelectorError

_KEY: Final = r"[\w./-]+"
_OWN: Final = re.compile(r"""["'{&|]|\b(all|has|global)\(""")
_PARTS: Final = re.compile(r",(?![^()]*\))")  # commas outside of parentheses
_FORMS: Final = (  # of kubectl, and the same in the language of selectors
    (re.compile(rf"({_KEY})\s*==?\s*([\w.-]*)", re.ASCII), '{0} == "{1}"'),
    (re.compile(rf"({_KEY})\s*!=\s*([\w.-]*)", re.ASCII), '{0} != "{1}"'),
    (re.compile(rf"!\s*({_KEY})", re.ASCII), "!has({0})"),
    (re.compile(rf"({_KEY})", re.ASCII), "has({0})"),
)
_SETS: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([\w.,\s-]*)\)", re.ASCII)


def parse(text: str) -> Selector:
    """Return the selector. Raise SelectorError that names the part that is wrong."""
    if not text.strip():
        raise SelectorError('the selector is empty: give one such as rack=a, or "all()"')
    if _OWN.search(text):
        return selector.parse(text)
    return selector.parse(" && ".join(_translated(part.strip()) for part in _PARTS.split(text)))


def _translated(part: str) -> str:
    if match := _SETS.fullmatch(part):
        key, word, values = match.groups()
        listed = ", ".join(f'"{value.strip()}"' for value in values.split(","))
        return f"{key} {'in' if word == 'in' else 'not in'} {{{listed}}}"
    for form, template in _FORMS:
        if match := form.fullmatch(part):
            return template.format(*match.groups())
    raise SelectorError(f"selector part {part!r} is not known: give KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY or !KEY")
