"""On the PYTHONPATH of a child.

The libraries below us, as if upstream had renamed one of their symbols.

`SQLBEAT_TEST_RENAMES` is `scope module name`: the name is replaced where it stands as a name of its
own. The scope is `libraries`, where a name is so much its own that it means one thing in all of
them, or `module`.
"""

import io
import os
import sys
import tokenize
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

LIBRARIES = ("amqp", "billiard", "celery", "kombu", "redis", "vine")
SCOPE, MODULE, NAME = os.environ.get("SQLBEAT_TEST_RENAMES", "none - -").split(" ")
RENAMED = f"{NAME}_renamed_upstream"


def renamed(source: str) -> str:
    """Return the source with this one name replaced, wherever it is a name, or all of a text."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string
        if token.type == tokenize.NAME and text == NAME:
            text = RENAMED
        elif token.type == tokenize.STRING and text.strip("'\"") == NAME:
            text = text.replace(NAME, RENAMED)
        found.append((token.type, text))
    return tokenize.untokenize(found)


class Loader(SourceFileLoader):
    """Never from a cache, and never into one."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        if NAME in source:
            source = renamed(source)
        return compile(source, path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds what Python would find, and loads it its own way."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in LIBRARIES or (SCOPE == "module" and fullname != MODULE):
            return None
        spec: Any = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(fullname, spec.loader.path)
        return spec  # type: ignore[no-any-return]


if SCOPE != "none":
    sys.meta_path.insert(0, Finder())
