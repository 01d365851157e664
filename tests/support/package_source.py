"""The source of the package, read and parsed once for all tests that judge it."""

import ast
from functools import cache
from pathlib import Path

import celery_sqlbeat

PACKAGE = Path(celery_sqlbeat.__file__).parent


@cache
def sources() -> dict[str, str]:
    """Return the text of each module by its path below the package."""
    paths = PACKAGE.rglob("*.py")
    return {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def tree_of(module: str) -> ast.Module:
    """Return the parsed text of a module, given by its path."""
    return ast.parse(sources()[module])
