"""Write each event to the log, and hand it to the subscribers.

A line has the sentence and the fields as `key=value`; the record has the fields as attributes, too.
Foreign text is escaped, so that it ends no line, and no terminal obeys it. Nothing here takes a
lock, which a fork or a green thread could keep: the dict of listeners changes and is read by single
operations of the interpreter.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

from celery_sqlbeat.errors import SqlbeatError

_P = ParamSpec("_P")

_MOST_NAMES = 10  # of a batch, in one line
_FRAMES = 4  # this function and two more: the record names the caller that emits

logger = logging.getLogger("celery_sqlbeat")
is_enabled = logger.isEnabledFor
_failures = logging.getLogger("celery_sqlbeat.events")


class Event(NamedTuple):
    """Something that a beat, a worker or a command did or detected."""

    name: str
    fields: Mapping[str, Any]


class Kind(NamedTuple):
    """One kind of event, as it is declared."""

    name: str
    declaration: Callable[..., None]
    fields: tuple[str, ...]
    level: int
    """Of its line in the log."""
    sentence: str
    """How its line begins, the same for each event of the kind."""
    has_traceback: bool
    """Whether an `error` of a foreign class is logged with its traceback."""


KINDS: dict[str, Kind] = {}
"""Every kind by its name, in the order of their declaration."""

_Listener = Callable[[Event], object]
_listeners: dict[object, _Listener] = {}
_failed: dict[tuple[object, str], object] = {}  # by listener and kind: what was said once


def subscribe(listener: _Listener) -> Callable[[], None]:
    """Call this function with each event of this process from now on; returns what ends that.

    It runs in the thread that emits, so it must be quick, and must not block: a beat or a worker
    waits for it. Of an exception that it raises the first of each kind of event is logged; nothing
    else is harmed.
    """
    token = object()
    _listeners[token] = listener

    def end() -> None:
        _listeners.pop(token, None)
        for key in [key for key in tuple(_failed) if key[0] is token]:
            _failed.pop(key, None)

    return end


@contextmanager
def recorded() -> Iterator[list[Event]]:
    """Keep the events of this process while the block lasts, in a list that grows with them."""
    events: list[Event] = []
    end = subscribe(events.append)
    try:
        yield events
    finally:
        end()


def event(level: int, sentence: str, has_traceback: bool = False) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """Make the declaration of a kind what emits it."""

    def declare(declaration: Callable[_P, None]) -> Callable[_P, None]:
        fields = tuple(inspect.signature(declaration).parameters)
        kind = Kind(declaration.__name__, declaration, fields, level, sentence, has_traceback)
        KINDS[kind.name] = kind

        @wraps(declaration)
        def emit(*args: _P.args, **fields: _P.kwargs) -> None:
            if is_enabled(level) or _listeners:  # else nobody would see it
                declaration(*args, **fields)  # does nothing, and refuses fields that are not its own
                _tell(kind, fields)

        return emit

    return declare


def _tell(kind: Kind, given: Mapping[str, Any]) -> None:
    told = Event(kind.name, {name: given.get(name) for name in kind.fields})
    if is_enabled(kind.level):
        try:
            write(kind.level, kind.name, kind.sentence, told.fields, kind.has_traceback)
        except Exception:  # a filter of the shop's, or an error that cannot be shown
            _say_failed(write, write, kind.name)
    for token, listener in tuple(_listeners.items()):
        try:
            listener(told)
        except Exception:
            _say_failed(token, listener, kind.name)


def _say_failed(token: object, listener: object, name: str) -> None:
    here = object()
    if _failed.setdefault((token, name), here) is here:
        try:
            _failures.exception("a subscriber raised, which is said once: listener=%s event=%s", listener, name)
        except Exception:  # a filter of the shop's, again: there is nowhere left to say it
            return


def write(level: int, name: str, sentence: str, fields: Mapping[str, Any], has_traceback: bool) -> None:
    """Write one line."""
    fields = {field: value for field, value in fields.items() if value is not None}
    error = fields.get("error")
    is_fault = has_traceback and isinstance(error, BaseException) and not isinstance(error, SqlbeatError)
    extra = {"event": name} | {field: _as_attribute(value) for field, value in fields.items()}
    rest: dict[str, Any] = {"extra": extra, "exc_info": error if is_fault else None, "stacklevel": _FRAMES}
    if fields:
        tail = " ".join(f"{field}={quoted(_as_text(value))}" for field, value in fields.items())
        logger.log(level, f"{sentence}: %s", tail, **rest)
    else:
        logger.log(level, sentence, **rest)


def _as_attribute(value: object) -> object:
    return value if isinstance(value, int | float | date) else shown(_as_text(value))


def _as_text(value: object) -> str:
    if isinstance(value, BaseException):
        return " ".join(str(value).split()) or type(value).__name__
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, tuple | list):
        more = [f"and {len(value) - _MOST_NAMES} more"] if len(value) > _MOST_NAMES else []
        return ", ".join([_as_text(part) for part in value[:_MOST_NAMES]] + more)
    return str(value)


def shown(text: object) -> str:
    r"""Return the text with everything escaped that is not printed: `\n`, `\x1b`, `\u202e`.

    What holds nothing of the kind stays as it is, so that a name can be copied. The rest includes
    control characters, line and paragraph separators, marks that turn the direction of writing, and
    what has no width.
    """
    text = str(text)
    return text if text.isprintable() else "".join(map(_escaped, text))


def quoted(text: object) -> str:
    """Return the text as the value of a `key=value`, in quotes where a reader needs them.

    In single ones where it holds double ones only, so that what is to be copied stays as it is.
    """
    text = str(text)
    if text and text.isprintable() and not any(character in text for character in _SPECIAL):
        return text
    mark = "'" if '"' in text and "'" not in text else '"'
    return mark + "".join(map(_escaped, text)).replace('"', '"' if mark == "'" else '\\"') + mark


_SPECIAL = " \"'=\\"


def _escaped(character: str) -> str:
    if character == "\\":  # or an escape could be forged
        return "\\\\"
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
