"""What `celery beat --scheduler` names: Celery's scheduler, whose schedule lives in a SQL table.

Thin: it speaks Celery's language outwards, and hands each tick to the parts that do the work.
"""

import logging
import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import celery.beat

from celery_sqlbeat.beat.assembly import Parts, assemble
from celery_sqlbeat.beat.code_calls import entry_of
from celery_sqlbeat.beat.consumers import look_at
from celery_sqlbeat.beat.duties import Background
from celery_sqlbeat.beat.publishing import Publisher
from celery_sqlbeat.beat.recall import Recall
from celery_sqlbeat.beat.signals import signals_wait
from celery_sqlbeat.beat.stock_file import is_there, runs_in_code, runs_in_file
from celery_sqlbeat.beat.trouble import Trouble
from celery_sqlbeat.beat.untouched import untouched
from celery_sqlbeat.config import read_settings
from celery_sqlbeat.errors import BrokerAway, DatabaseAway, SettingError, SqlbeatError, TransientError
from celery_sqlbeat.model import Claim
from celery_sqlbeat.store import Store, open_store

logger = logging.getLogger(__name__)

_ROLL_SECONDS = 1.0  # for each of the two questions to all workers; a busy one answers between two messages
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0  # seconds between two tries of what fails, until somebody mends it
_LONGEST_AWAY = 1.0  # seconds; what is away comes back by itself, and a try is one cheap connect


class Scheduler(celery.beat.Scheduler):  # type: ignore[misc]  # Celery ships no types
    """Any number of these run at the same time; each due job is fired by exactly one of them."""

    lock_key = None  # redbeat, as long as a shop has it installed, asks every scheduler for its lock

    def __init__(
        self,
        app: Any,
        schedule: Any = None,
        max_interval: Any = None,
        *args: Any,
        schedule_filename: Any = None,
        **kwargs: Any,
    ) -> None:
        try:
            self.settings = read_settings(app.conf, os.environ)
        except SettingError as error:
            if kwargs.get("lazy"):  # for the banner of `celery beat`: whoever started it reads one line, no traceback
                raise SystemExit(f"celery-sqlbeat: {error}") from error
            raise
        self.schedule_filename = schedule_filename
        self._parts: Parts | None = None
        self._background: list[Background] = []
        self._store: Store | None = None
        self._publisher = Publisher(app, self.apply_entry, self._entry_of, self.settings.statement_timeout)
        self._failures = 0
        self._database_is_away = False
        self._trouble = Trouble()
        self._read: dict[Any, Any] = {}
        self._slept: float | None = None
        longest = max_interval or app.conf.beat_max_loop_interval or self.settings.poll_interval
        super().__init__(app, schedule, longest, *args, **kwargs)

    @property
    def schedule(self) -> dict[Any, Any]:
        """The entries of the code; what the table holds beside them is not loaded."""
        entries: dict[Any, Any] = self.data
        return entries

    @schedule.setter
    def schedule(self, entries: dict[Any, Any]) -> None:
        self.data = entries

    @property
    def info(self) -> str:
        """The line about the database in beat's banner."""
        return f"    . db -> {self.settings.database_url.masked()}\n    . namespace -> {self.settings.namespace}"

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Fire what is due; returns the seconds to sleep. Neither raises nor blocks for more than a few seconds."""
        if untouched(celery.beat.Scheduler, "tick"):
            return self._tick()
        # A tool wants to see each tick. Celery's own asks for its heap first, which is where ours does its work.
        self._heap, self._slept = None, None
        seconds: float = super().tick(*args, **kwargs)
        return seconds if self._slept is None else self._slept

    def populate_heap(self, *_: Any, **__: Any) -> None:
        """Do the work of a tick that goes by way of Celery's own; the heap stays empty."""
        self._slept = self._tick()

    def _tick(self) -> float:
        with signals_wait():
            try:
                seconds = self._parts_of_this_process().tick()
            except SqlbeatError as error:  # each of them says in one line what is wrong
                return self._wait("%s", error)
            except Exception as error:
                # Beat must go on: an exception here would end it, and with it every other job.
                return self._wait("this tick failed (%s)", error, exc_info=True)
        if self._failures:
            logger.warning("beat goes on after %d tries", self._failures)
            self._failures, self._database_is_away = 0, False
            self._trouble.is_over()
        return min(seconds, float(self.max_interval))

    def setup_schedule(self) -> None:
        """Read the entries of the code. An entry that is wrong is reported by the import, and stops no other."""
        self.install_default_entries(self.app.conf.beat_schedule)
        self._read = dict(self.app.conf.beat_schedule)
        for name, entry in self._read.items():
            try:
                self.data[name] = self._maybe_entry(name, entry)
            except Exception:
                self.data[name] = entry

    def _read_late_entries(self) -> None:
        """Entries that came after `setup_schedule`: tools add theirs, or replace some, at the signal `beat_init`."""
        if self._read != self.app.conf.beat_schedule:
            self.setup_schedule()

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Send an entry as Celery does; the publisher learns whether that raised."""
        send: Callable[..., Any] = super().apply_async
        return self._publisher.watch(lambda: send(entry, producer=producer, advance=False, **kwargs))

    def sync(self) -> None:
        """Write down what ran where stock beat would look for it. Celery asks for that every few minutes."""
        if self._parts is not None and self._parts.handing_back is not None and not self._database_is_away:
            with signals_wait():
                self._parts.handing_back.write()

    def close(self) -> None:
        """Record what was published last, leave the register, close the connections. Celery calls it twice."""
        parts, self._parts = self._parts, None
        background, self._background = self._background, []
        for thread in background:
            thread.end()
        if parts is not None:
            parts.firing.hand_over()
        for thread in background:
            thread.wait()
        if parts is not None and not self._database_is_away:
            if parts.handing_back is not None:
                parts.handing_back.write()
            try:
                parts.standing.say_stopped()
            except SqlbeatError as error:
                logger.info("the end of this beat is not registered: %s", error)
        self._publisher.close()
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _parts_of_this_process(self) -> Parts:
        if self._parts is None:
            if self._store is None:
                self._store = open_store(self.settings)
            self._read_late_entries()
            self._parts = self._assemble(self._store)
            self._background = [Background(duties) for duties in self._parts.background]
        return self._parts

    def _assemble(self, store: Store) -> Parts:
        filename = self.schedule_filename or ""
        # A shop that neither ran stock beat here nor names a file has no use for one.
        is_wanted = filename != "" and (is_there(filename) or filename != self.app.conf.beat_schedule_filename)
        return assemble(
            self.app,
            self.settings,
            store,
            self._publisher,
            self.data,
            {**runs_in_code(self._read), **runs_in_file(filename)},
            partial(look_at, self.app, seconds=_ROLL_SECONDS),
            stock_file=filename if is_wanted else None,
            recall=Recall(self.app),
        )

    def _entry_of(self, claim: Claim) -> Any:
        return entry_of(self.app, self.data, claim)

    def _wait(self, text: str, error: Exception, exc_info: bool = False) -> float:
        """Say what is wrong, and again ever more rarely; full jitter, so that many beats do not come back at once."""
        self._failures += 1
        self._database_is_away = isinstance(error, DatabaseAway)
        longest = _LONGEST_AWAY if isinstance(error, (TransientError, BrokerAway)) else _LONGEST_WAIT
        longest = min(longest, _FIRST_WAIT * 2.0 ** min(self._failures - 1, 10))
        seconds = min(longest, float(self.max_interval)) * (0.5 + 0.5 * random.random())  # noqa: S311 - no secret
        if self._trouble.is_to_be_told(str(error)):
            logger.error(text + "; trying again in %.1f s", error, seconds, exc_info=exc_info and self._failures == 1)
        return seconds
