"""Options that name a file or directory."""

from pathlib import Path
from typing import Any

import click


class _PathType(click.Path):
    """A path that is not empty: an empty one, as of an unset variable, would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("is empty: give a path", param, ctx)
        return super().convert(value, param, ctx)


PATH = _PathType(path_type=Path)
