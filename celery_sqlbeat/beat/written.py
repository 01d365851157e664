"""What of an entry can be written as text so that it reads back exactly, and a fingerprint of what cannot.

A fingerprint is the same in every process that runs the same code: no hash(), no repr(), no address goes into it.
"""

import functools
import hashlib
import inspect
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule

from celery_sqlbeat.checks import is_encodable

_LITERALS = (type(None), bool, int, str)
_SPOKEN = (date, time, timedelta, Decimal, UUID, PurePath, float)  # their str() says all
# What Celery's own schedules are made of; a subclass may have more, which need not be the same in every process.
_SCHEDULE_PARTS = (
    "run_every",
    "relative",
    "_orig_minute",
    "_orig_hour",
    "_orig_day_of_month",
    "_orig_month_of_year",
    "_orig_day_of_week",
    "event",
    "lat",
    "lon",
    "nowfun",
)


def as_json(value: object) -> str | None:
    """The JSON text that reads back as exactly this value; None where there is no such text."""
    try:
        if not is_plain(value):
            return None
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # Half a character, as in a file name that is no UTF-8, can be written only by its number.
        return text if is_encodable(text) else json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):  # ValueError: an int of thousands of digits
        return None


def is_plain(value: object) -> bool:
    """Whether JSON keeps this value as it is. A tuple would come back as a list, an Enum as its value."""
    kind = type(value)
    if kind in _LITERALS:
        return True
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]  # it is a float
    if isinstance(value, list) and kind is list:
        return all(map(is_plain, value))
    if isinstance(value, dict) and kind is dict:
        return all(type(key) is str and is_plain(one) for key, one in value.items())
    return False


def digest(*values: object) -> str:
    """A fingerprint of these values."""
    text = json.dumps([shape(value) for value in values], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def shape(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """What is known of a value in every process, as plain data."""
    kind = type(value)
    if kind is int:
        return value if abs(value) < 2**63 else hex(value)  # Python writes no int of thousands of digits otherwise
    if kind in _LITERALS:
        return value
    if id(value) in inside:
        return ["itself"]
    inside = (*inside, id(value))
    if isinstance(value, Enum):
        return [_name(kind), value.name]
    if isinstance(value, datetime) and value.microsecond:
        return [_name(kind)]  # the time at which the configuration was read; another one in each process
    if isinstance(value, _SPOKEN):
        return [_name(kind), str(value)]
    if isinstance(value, bytes | bytearray):
        return [_name(kind), value.hex()]
    if isinstance(value, list | tuple):
        return [_name(kind), [shape(one, inside) for one in value]]
    if isinstance(value, set | frozenset):
        return [_name(kind), sorted(_line(one, inside) for one in value)]
    if isinstance(value, Mapping):
        return [_name(kind), sorted([_line(key, inside), shape(one, inside)] for key, one in value.items())]
    if isinstance(value, BeatLazyFunc | functools.partial):
        return [_name(kind), shape(_parts(value), inside)]
    if isinstance(value, BaseSchedule):
        parts = vars(value)
        return [_name(kind), [shape(parts.get(part), inside) for part in _SCHEDULE_PARTS]]
    if inspect.isroutine(value) or inspect.isclass(value):
        return _name(value)
    return [_name(kind)]


def _parts(value: Any) -> tuple[Any, Any, Any]:
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    held = vars(value)
    return held.get("_func"), held.get("_func_params"), None


def _line(value: object, inside: tuple[int, ...]) -> str:
    return json.dumps(shape(value, inside), sort_keys=True)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}"
