"""Names of one deployment in documents, replaced by those of another."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from svc.names import Names

_PATHS: Final = ("state_dir", "run_dir", "log_dir")


class Renaming:
    """The names of `source` in keys, values, selectors and paths, replaced by those of `target`."""

    def __init__(self, source: Names, target: Names) -> None:
        self.source = source
        self.target = target

    @property
    def is_identical(self) -> bool:
        return self.source == self.target

    @cached_property
    def _prefixes(self) -> list[tuple[str, str]]:
        """Return the prefixes of label and annotation keys, the longest first: they may contain each other."""
        pairs = dict(zip(self.source.native_domains, self.target.native_domains, strict=False))
        pairs |= {f"{getattr(self.source, name)}/": f"{getattr(self.target, name)}/" for name in _KEY_PREFIXES}
        return sorted(pairs.items(), key=lambda pair: -len(pair[0]))

    @cached_property
    def _in_selectors(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![\w./-])({'|'.join(re.escape(prefix) for prefix, _ in self._prefixes)})")

    def key(self, key: str) -> str:
        """Return the key of a label or annotation."""
        return next((new + key[len(old) :] for old, new in self._prefixes if key.startswith(old)), key)

    def pairs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return labels or annotations, with the values that name a component."""
        words = {self.source.controllers: self.target.controllers, self.source.operator_manager: self.target.operator_manager}
        return {self.key(key): words.get(value, value) for key, value in given.items()}

    def selector(self, text: str) -> str:
        """Return a selector with other keys of labels."""
        new = dict(self._prefixes)
        return self._in_selectors.sub(lambda match: new[match[0]], text)

    def path(self, text: str) -> str:
        """Return a path that begins with a directory of the source, in the same directory of the target."""
        for name in _PATHS:
            old = getattr(self.source, name)
            if text == old or text.startswith(f"{old}/"):
                return str(getattr(self.target, name)) + text[len(old) :]
        folder, slash, base = text.rpartition("/")
        is_kubeconfig = base == f"{self.source.plugin}-kubeconfig"
        return f"{folder}{slash}{self.target.plugin}-kubeconfig" if is_kubeconfig else text

    def profile(self, name: str) -> str:
        """Return the name of a policy profile."""
        if name == self.source.default_allow_profile:
            return self.target.default_allow_profile
        for field in ("namespace_profile", "service_account_profile"):
            old = getattr(self.source, field)
            if name.startswith(old):
                return str(getattr(self.target, field)) + name[len(old) :]
        return name


_KEY_PREFIXES: Final = ("annotation_prefix", "qos_prefix", "label_prefix")
