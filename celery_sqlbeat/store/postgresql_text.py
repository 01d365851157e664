"""Our blocks as PostgreSQL takes them: with numbered markers, and the rows of a batch as one array for each column."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from celery_sqlbeat.store.session import Rows
from celery_sqlbeat.store.statements import Block

CLOCK = "statement_timestamp()"
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"--.*")
_SPECIAL = str.maketrans({"\\": "\\\\", '"': '\\"', "\0": "\ufffd"})  # in an array's text; PostgreSQL has no NUL


class Statement(NamedTuple):
    """A block as the server knows it: the driver need not read it, and has no limit to what it remembers."""

    text: bytes
    names: tuple[str, ...]
    """Of the values for `$1`, `$2` and so on."""


@lru_cache(maxsize=1024)  # the blocks, times the clocks of tests
def statement(block: Block, clock: str) -> Statement:
    text = " ".join(_COMMENT.sub("", block.text).split())
    if block.columns:
        arrays = ", ".join(f":{name}__rows::{kind}[]" for name, kind in zip(block.columns, block.types, strict=True))
        text = text.replace(":rows", f"SELECT * FROM unnest({arrays})")  # noqa: S608 - names from our own files
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
    return Statement(numbered.replace(CLOCK, clock).encode(), names)


@lru_cache(maxsize=1024)
def _parts(text: bytes) -> list[bytes | int]:
    """A statement's text, cut at its markers; in their places their numbers, from 0 on."""
    parts = re.split(rb"\$(\d+)", text)
    return [int(part) - 1 if at % 2 else part for at, part in enumerate(parts)]


def filled(text: bytes, values: Sequence[bytes]) -> bytes:
    return b"".join(values[part] if isinstance(part, int) else part for part in _parts(text))


def arrays(block: Block, rows: Rows) -> dict[str, str]:
    columns = zip(*rows, strict=True)
    return {
        f"{name}__rows": "{" + ",".join(_elements(kind, column)) + "}"
        for name, kind, column in zip(block.columns, block.types, columns, strict=True)
    }


def _elements(kind: str, column: Sequence[Any]) -> list[str]:
    if kind == "timestamptz":
        return ["NULL" if value is None else value.isoformat() for value in column]
    if kind == "text":
        return ["NULL" if value is None else f'"{value.translate(_SPECIAL)}"' for value in column]
    if kind == "smallint":
        return ["NULL" if value is None else str(int(value)) for value in column]
    return ["NULL" if value is None else str(value) for value in column]
