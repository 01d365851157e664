"""Queues as folders, messages as files. Each step is one rename, so that a process may be killed at any moment:

written aside, put into its queue, taken into its holder's folder, and removed or given back. Knows no broker.
"""

import contextlib
import heapq
import itertools
import json
import logging
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from celery_sqlbeat.embedded.owner import dead_folders, exclusive, own_folder

_MESSAGE = ".json"
_AGAIN = ".again.json"  # it was taken before, by somebody who gave it back or died
_KEEPER = ".keeper"  # in a queue that lives no longer than one process: its owner's folder
_LOOK_AHEAD = 64  # names remembered from one look at a queue; each look reads the whole folder
_LOWEST_PRIORITY = 9  # of 0 to 9, the higher the sooner

logger = logging.getLogger(__name__)
_numbers = itertools.count()


class Taken(NamedTuple):
    """A message that this process holds."""

    path: Path
    message: Any
    again: bool


class Spool:
    """The queues below one folder, as one consumer or producer sees them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._queues = root / "queues"
        self._ahead: dict[str, deque[str]] = {}

    def prepare(self) -> None:
        """Make the folder, if it is not there."""
        self._queues.mkdir(parents=True, exist_ok=True)

    def declare(self, queue: str, temporary: bool = False) -> None:
        """Make a queue; a temporary one is removed when the process that declared it last has ended."""
        folder = self._queue(queue)
        folder.mkdir(parents=True, exist_ok=True)
        if temporary:
            with exclusive(self.root):
                folder.mkdir(exist_ok=True)
                (folder / _KEEPER).write_text(own_folder(self.root).name)

    def put(self, queue: str, message: Mapping[str, Any], priority: int = 0) -> None:
        """Add a message. Nobody sees it before it is whole."""
        order = f"{_LOWEST_PRIORITY - priority}-{time.time_ns():020d}-{next(_numbers):08d}-{secrets.token_hex(4)}"
        name = order + _MESSAGE
        written = own_folder(self.root) / name
        written.write_text(json.dumps(message), encoding="utf-8")
        self._into_queue(written, self._queue(queue) / name)

    def take(self, queue: str) -> Taken | None:
        """Take the first message of a queue; only one process can."""
        folder, mine = self._queue(queue), own_folder(self.root) / self._name(queue)
        mine.mkdir(exist_ok=True)
        while name := self._next(queue, folder):
            taken = mine / name
            try:
                (folder / name).rename(taken)
            except FileNotFoundError:  # somebody else was first
                continue
            try:
                return Taken(taken, json.loads(taken.read_text(encoding="utf-8")), name.endswith(_AGAIN))
            except ValueError:  # a power failure can leave the name of a file without its content
                self._set_aside(taken)
        return None

    def _next(self, queue: str, folder: Path) -> str | None:
        ahead = self._ahead.get(queue)
        if not ahead:
            self._ahead[queue] = ahead = deque(heapq.nsmallest(_LOOK_AHEAD, _messages(folder)))
        return ahead.popleft() if ahead else None

    def _set_aside(self, taken: Path) -> None:
        broken = self.root / "broken"
        broken.mkdir(exist_ok=True)
        taken.rename(broken / taken.name)
        logger.error("a message of the embedded broker cannot be read and was set aside: %s", broken / taken.name)

    def acknowledge(self, taken: Path) -> None:
        """Be done with a message."""
        taken.unlink(missing_ok=True)

    def give_back(self, taken: Path) -> None:
        """Put a message back to its old place in its queue, marked as one that was taken before."""
        name = taken.name if taken.name.endswith(_AGAIN) else taken.name.removesuffix(_MESSAGE) + _AGAIN
        with contextlib.suppress(FileNotFoundError):  # acknowledged meanwhile
            self._into_queue(taken, self._queues / taken.parent.name / name)

    @staticmethod
    def _into_queue(source: Path, target: Path) -> None:
        try:
            source.rename(target)
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)

    def size(self, queue: str) -> int:
        """How many messages wait in a queue."""
        return len(_messages(self._queue(queue)))

    def purge(self, queue: str) -> int:
        """Remove the messages that wait in a queue; returns how many."""
        folder, removed = self._queue(queue), 0
        for name in _messages(folder):
            with contextlib.suppress(FileNotFoundError):  # taken meanwhile
                (folder / name).unlink()
                removed += 1
        return removed

    def delete(self, queue: str) -> None:
        """Remove a queue, what waits in it, and its bindings."""
        name = self._name(queue)
        with exclusive(self.root):
            self._delete(name)

    def _delete(self, name: str) -> None:
        for binding in (self.root / "exchanges").glob(f"*/{name}=*{_MESSAGE}"):
            binding.unlink(missing_ok=True)
        shutil.rmtree(self._queues / name, ignore_errors=True)

    def bind(self, exchange: str, binding: tuple[str, str, str]) -> None:
        """Bind a queue to an exchange: (routing key, pattern, queue)."""
        target = self._binding(exchange, binding)
        if not target.exists():
            written = own_folder(self.root) / f"{secrets.token_hex(8)}{_MESSAGE}"
            written.write_text(json.dumps(binding), encoding="utf-8")
            self._into_queue(written, target)

    def unbind(self, exchange: str, binding: tuple[str, str, str]) -> None:
        """Undo a binding."""
        self._binding(exchange, binding).unlink(missing_ok=True)

    def bindings(self, exchange: str) -> list[tuple[str, str, str]]:
        """Return what is bound to an exchange."""
        folder, found = self._exchange(exchange), []
        for name in sorted(_messages(folder)):
            with contextlib.suppress(FileNotFoundError):  # unbound meanwhile
                routing_key, pattern, queue = json.loads((folder / name).read_text(encoding="utf-8"))
                found.append((routing_key, pattern, queue))
        return found

    def declare_exchange(self, exchange: str, kind: str) -> None:
        """Remember what kind of exchange this is."""
        folder = self._exchange(exchange)
        if not (folder / kind).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / kind).touch()

    def kind_of(self, exchange: str, kinds: Mapping[str, object]) -> str | None:
        """Return which of these kinds an exchange was declared as, by whichever process."""
        folder = self._exchange(exchange)
        return next((kind for kind in kinds if (folder / kind).is_file()), None)

    def restore(self) -> int:
        """Give back what dead processes held, and remove their temporary queues; returns how many messages."""
        restored = 0
        for dead in dead_folders(self.root):
            self._remove_queues_of(dead.name)
            for held in sorted(dead.glob(f"*/*{_MESSAGE}")):
                if (self._queues / held.parent.name).is_dir():
                    self.give_back(held)
                    restored += 1
        return restored

    def _remove_queues_of(self, keeper: str) -> None:
        with exclusive(self.root):
            for path in self._queues.glob(f"*/{_KEEPER}"):
                if path.read_text() == keeper:
                    self._delete(path.parent.name)

    def _queue(self, queue: str) -> Path:
        return self._queues / self._name(queue)

    def _exchange(self, exchange: str) -> Path:
        return self.root / "exchanges" / self._name(exchange)

    def _binding(self, exchange: str, binding: tuple[str, str, str]) -> Path:
        routing_key, pattern, queue = binding
        return self._exchange(exchange) / f"{self._name(queue)}={quote(f'{routing_key} {pattern}', safe='')}{_MESSAGE}"

    @staticmethod
    def _name(name: str) -> str:
        """Return a file name that is no path, no hidden file, and not the name of another queue."""
        quoted = quote(name, safe="@") or "%"
        return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def _messages(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(_MESSAGE) and not name.startswith(".")]
    except FileNotFoundError:
        return []
