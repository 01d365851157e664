"""The table of symbols that this package needs and no library documents, verified at each start.

A required one that is missing, or has another signature, ends the process by one line (`guard`);
without an optional one its fast path is off, which is logged once.
"""

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from celery_sqlbeat import events
from celery_sqlbeat.celery_bridge.beat_symbols import BEAT
from celery_sqlbeat.celery_bridge.symbol_row import (
    ACKNOWLEDGING,
    BATCHES,
    CONFIRMING,
    CONNECTIONS,
    KINDS,
    RETURNING,
    Missing,
    Part,
    Symbol,
    difference,
    found_at,
    rows,
)
from celery_sqlbeat.celery_bridge.worker_symbols import WORKER

__all__ = ["ACKNOWLEDGING", "BATCHES", "CONFIRMING", "CONNECTIONS", "KINDS", "RETURNING", "SYMBOLS", "Part", "Symbol"]


# What a broker of a folder needs of kombu's virtual transports beside what each of them overrides.
_CHANNEL = "kombu.transport.virtual.base:Channel"
_STATE = "kombu.transport.virtual.base:BrokerState"
_TRANSPORT = "kombu.transport.virtual.base:Transport"


def _folder_rows(part: Part) -> tuple[Symbol, ...]:
    return rows(
        part,
        "kombu 5.3",
        "messages of folder:// are lost, come twice or never",
        f"{_CHANNEL}._new_queue (self, queue, **kwargs)",
        f"{_CHANNEL}._put (self, queue, message)",
        "kombu.transport.virtual.exchange:FanoutExchange.deliver > _put_fanout",
        f"{_CHANNEL}._get (self, queue, timeout)",
        f"{_CHANNEL}._size (self, queue)",
        f"{_CHANNEL}._purge (self, queue)",
        f"{_CHANNEL}._restore (self, message)",
        f"{_CHANNEL}._get_message_priority (self, message)",
        f"{_CHANNEL}.__init__ > _consumers",
        f"{_CHANNEL}.__init__ > _tag_to_queue",
        f"{_CHANNEL}.__init__ > _active_queues",
        f"{_CHANNEL}.typeof (self, exchange, default)",
        f"{_CHANNEL}.get_table (self, exchange)",
        f"{_STATE}.binding_declare (self, queue, exchange, routing_key, arguments)",
        f"{_STATE}.binding_delete (self, queue, exchange, routing_key)",
        f"{_STATE}.queue_bindings_delete (self, queue)",
        "kombu.transport.virtual.exchange:ExchangeType.prepare_bind (self, queue, exchange, routing_key, arguments)",
        "kombu.transport.virtual.base:QoS.can_consume (self)",
        f"{_TRANSPORT}.__init__ > cycle",
        f"{_TRANSPORT}._deliver (self, message, queue)",
        f"{_TRANSPORT}.register_with_event_loop",
        "kombu.transport:TRANSPORT_ALIASES",
        only="celery_sqlbeat.brokers.folder",
    )


SYMBOLS: tuple[Symbol, ...] = (*WORKER, *BEAT, *_folder_rows("worker"), *_folder_rows("beat"))


class Library(NamedTuple):
    """A library, with the versions that the table was compared with."""

    shown: str
    oldest: str
    newest: str

    @property
    def after(self) -> str:
        """The first version that is not known."""
        major, minor = self.newest.split(".")
        return f"{major}.{int(minor) + 1}"


LIBRARIES = {
    "celery": Library("Celery", "5.3", "5.7"),
    "kombu": Library("kombu", "5.3", "5.7"),
    "billiard": Library("billiard", "4.1", "4.3"),
    "amqp": Library("py-amqp", "5.1", "5.4"),
    "redis": Library("redis-py", "4.5", "8.1"),
}


class CheckedSymbol(NamedTuple):
    """What was found of one symbol."""

    symbol: Symbol
    difference: str | None
    """What is wrong with it; None where nothing is."""
    is_loaded: bool
    """Whether this process has loaded the module that the symbol counts for."""


_off: dict[str, CheckedSymbol] = {}  # fast paths, each with the first symbol that it lacks
_told: set[str] = set()


def verify(*parts: Part) -> list[CheckedSymbol]:
    """Compare the rows of these parts with what is installed; turn off fast paths that lack one."""
    checked = [_check(symbol) for symbol in SYMBOLS if symbol.part in parts]
    for row in checked:
        if row.difference is not None and row.symbol.feature is not None:
            _off.setdefault(row.symbol.feature, row)
    return checked


def tell_what_is_off(part: Part) -> None:
    """Say once of each fast path of this part that it is off; when the logs are set up."""
    for feature, each in _off.items():
        if each.symbol.part == part and feature not in _told:
            _told.add(feature)
            reason = f"{shown_version(each.symbol.library)} {each.difference}, so that {each.symbol.lost}"
            events.hook_missing(feature=feature, reason=reason)


def is_on(feature: str) -> bool:
    """Return whether a fast path lacks nothing."""
    return feature not in _off


def lacking(checked: Iterable[CheckedSymbol]) -> list[CheckedSymbol]:
    """Return those that are required and missing."""
    return [row for row in checked if row.difference is not None and row.symbol.feature is None]


def refusal(wrong: Sequence[CheckedSymbol], ours: str) -> str:
    """Return one line: what is missing in which version, and the remedy. `ours`: our version."""
    first = wrong[0]
    name = first.symbol.library
    known, installed = LIBRARIES[name], version_of(name)
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return (
        f"celery-sqlbeat {ours} knows {known.shown} {known.oldest} to {known.newest}; {installed} "
        f"{first.difference}{more}: install '{_other_version(name, installed)}' or upgrade celery-sqlbeat"
    )


def optional(path: str) -> Any:
    """Return the object at a path of the table, for a fast path; None where it is missing."""
    try:
        return found_at(path)
    except Missing:
        return None


def version_of(library: str) -> str:
    """Return the installed version of a library."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "none"


def shown_version(library: str) -> str:
    """Return the name and the version of a library, as people know it."""
    return f"{LIBRARIES[library].shown} {version_of(library)}"


def load_everything() -> None:
    """Import each module of the table that can be imported, so that `verify` leaves out no row."""
    for name in {symbol.only for symbol in SYMBOLS if symbol.only}:
        try:
            importlib.import_module(name)
        except ImportError:  # its client is not installed
            continue


def _check(symbol: Symbol) -> CheckedSymbol:
    if symbol.only and symbol.only not in sys.modules:
        return CheckedSymbol(symbol, None, False)
    return CheckedSymbol(symbol, difference(symbol), True)


def _other_version(name: str, installed: str) -> str:
    """Return which versions to install instead of this one."""
    known = LIBRARIES[name]
    if _numbers(installed) < _numbers(known.oldest):
        return f"{name}>={known.oldest}"
    return f"{name}<{known.after if _numbers(installed) >= _numbers(known.after) else installed}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))
