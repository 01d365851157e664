"""The class that `celery beat --scheduler` names: a Celery scheduler on a SQL table.

Thin: it offers the interface of Celery's scheduler, and hands each tick to the parts of the beat.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import celery.beat

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat.build import BeatParts, build_beat
from celery_sqlbeat.beat.duties import Background, LogThrottle, in_thread
from celery_sqlbeat.beat_schedule.entries import entry_of
from celery_sqlbeat.beat_schedule.shelve_file import is_there, runs_in_code, runs_in_file
from celery_sqlbeat.celery_bridge import guard
from celery_sqlbeat.celery_bridge.call_check import is_unpatched
from celery_sqlbeat.celery_bridge.inspect_workers import RecallRequest, ask_consumers
from celery_sqlbeat.celery_bridge.symbols import tell_what_is_off
from celery_sqlbeat.config.plugins import CLAIM_ORDERS, SCHEDULES
from celery_sqlbeat.config.settings import read_settings, require_functions
from celery_sqlbeat.errors import (
    BrokerUnavailable,
    DatabaseUnavailable,
    PayloadKeyError,
    SettingError,
    SqlbeatError,
    TransientError,
)
from celery_sqlbeat.model import Claim
from celery_sqlbeat.publish.publisher import Publisher
from celery_sqlbeat.store import Store, open_store

_ROLL_SECONDS = 1.0  # for each of two questions to all workers; a busy one answers between messages
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0  # seconds between two tries of a tick that fails
_LONGEST_AWAY = 1.0  # seconds, for what comes back by itself: a try is one cheap connect


class Scheduler(celery.beat.Scheduler):
    """Fires the jobs of a SQL table.

    Any number of these run at the same time; each due job is fired by exactly one of them.
    """

    lock_key = None  # redbeat, where a shop has it installed, asks every scheduler for its lock

    def __init__(
        self,
        app: Any,
        schedule: Any = None,
        max_interval: Any = None,
        *args: Any,
        schedule_filename: Any = None,
        **kwargs: Any,
    ) -> None:
        guard.require_beat(app)
        if not kwargs.get("lazy"):  # the lazy one is for the banner, before the logs are set up
            tell_what_is_off("beat")
        try:
            self.settings = read_settings(app.conf, environment.variables())
            require_functions(self.settings, SCHEDULES, CLAIM_ORDERS)
        except SettingError as error:
            if kwargs.get("lazy"):  # for the banner: the terminal shows one line, no traceback
                raise SystemExit(f"celery-sqlbeat: {error}") from error
            raise
        self.schedule_filename = schedule_filename
        self._parts: BeatParts | None = None
        self._background: list[Background] = []
        self._store: Store | None = None
        self._publisher = Publisher(app, self.apply_entry, self._entry_of, self.settings.statement_timeout)
        self._failures = 0
        self._error: Exception | None = None
        self._throttle = LogThrottle()
        self._read: dict[Any, Any] = {}
        self._slept: float | None = None
        longest: Any = max_interval or app.conf.beat_max_loop_interval or self.settings.poll_interval
        super().__init__(app, schedule, longest, *args, **kwargs)

    @property
    def schedule(self) -> dict[Any, Any]:
        """The entries of the code; other jobs of the table are not loaded."""
        entries: dict[Any, Any] = self.data
        return entries

    @schedule.setter
    def schedule(self, entries: dict[Any, Any]) -> None:
        self.data = entries

    @property
    def info(self) -> str:
        """The lines about the database in beat's banner."""
        return f"    . db -> {self.settings.database_url.masked()}\n    . namespace -> {self.settings.namespace}"

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Fire what is due; return the seconds to sleep. Never raises, nor blocks for long."""
        if is_unpatched(celery.beat.Scheduler, "tick"):
            return self._tick()
        # A tool has patched it to see ticks. Celery's own fills its heap first; ours fires then.
        self._heap, self._slept = None, None
        seconds: float = super().tick(*args, **kwargs)
        return seconds if self._slept is None else self._slept

    def populate_heap(self, *_: Any, **__: Any) -> None:
        """Do the work of a tick that Celery's own method makes; the heap stays empty."""
        self._slept = self._tick()

    def _tick(self) -> float:
        with environment.signals_wait():
            try:
                seconds = self._parts_of_this_process().tick()
            except Exception as error:
                # An exception here would end beat, and with it every other job.
                return self._wait(error)
        if self._failures:
            self._go_on()
        return min(seconds, float(self.max_interval or seconds))

    def setup_schedule(self) -> None:
        """Read the entries of the code; the import reports a wrong one, which stops no other."""
        self.install_default_entries(self.app.conf.beat_schedule)
        self._read = dict(self.app.conf.beat_schedule)
        for name, entry in self._read.items():
            try:
                self.data[name] = self._maybe_entry(name, entry)  # type: ignore[attr-defined]  # not in the stubs
            except Exception:
                self.data[name] = entry

    def _read_late_entries(self) -> None:
        """Read entries that tools have added or replaced since, at the signal `beat_init`."""
        if self._read != self.app.conf.beat_schedule:
            self.setup_schedule()

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Send an entry as Celery does, and let the publisher know whether that raised."""
        send: Callable[..., Any] = super().apply_async
        return self._publisher.watch(lambda: send(entry, producer=producer, advance=False, **kwargs))

    def sync(self) -> None:
        """Write the last runs into stock beat's file; Celery calls this every three minutes."""
        if self._parts is not None and self._parts.shelve_writer is not None and not self._is_database_unavailable:
            with environment.signals_wait():
                self._parts.shelve_writer.write()

    def close(self) -> None:
        """Record the last batch, leave the register, close connections. Celery calls it twice."""
        parts, self._parts = self._parts, None
        background, self._background = self._background, []
        for thread in background:
            thread.end()
        if parts is not None:
            parts.dispatcher.hand_over()
        for thread in background:
            thread.wait()
        if parts is not None and not self._is_database_unavailable:
            if parts.shelve_writer is not None:
                parts.shelve_writer.write()
            try:
                parts.membership.say_stopped()
            except SqlbeatError as error:
                events.step_failed(step="register the end of this beat", error=error)
        self._publisher.close()
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _parts_of_this_process(self) -> BeatParts:
        if self._parts is None:
            if self._store is None:
                self._store = open_store(self.settings)
            self._read_late_entries()
            self._parts = self._assemble(self._store)
            self._background = [Background(duties) for duties in self._parts.background]
        return self._parts

    def _assemble(self, store: Store) -> BeatParts:
        filename = self.schedule_filename or ""
        # A shop that neither ran stock beat here nor names a file needs none.
        is_wanted = filename != "" and (is_there(filename) or filename != self.app.conf.beat_schedule_filename)
        return build_beat(
            self.app,
            self.settings,
            store,
            self._publisher,
            self.data,
            {**runs_in_code(self._read), **runs_in_file(filename)},
            partial(ask_consumers, self.app, seconds=_ROLL_SECONDS),
            stock_file=filename if is_wanted else None,
            recall=RecallRequest(self.app),
            # The one writer of a file gains nothing by a second connection.
            begin_record=None if self.settings.database_url.database == "sqlite" else in_thread,
        )

    @property
    def _is_database_unavailable(self) -> bool:
        return isinstance(self._error, DatabaseUnavailable)

    def _entry_of(self, claim: Claim) -> Any:
        return entry_of(self.app, self.data, claim)

    def _wait(self, error: Exception) -> float:
        """Log the error ever more rarely; return the pause, with jitter so that beats spread."""
        self._failures += 1
        self._error = error
        longest = _LONGEST_AWAY if isinstance(error, (TransientError, BrokerUnavailable)) else _LONGEST_WAIT
        longest = min(longest, _FIRST_WAIT * 2.0 ** min(self._failures - 1, 10))
        seconds = min(longest, float(self.max_interval or longest)) * (0.5 + 0.5 * environment.chance())
        if self._throttle.admits(str(error)):
            if isinstance(error, DatabaseUnavailable):
                events.database_unavailable(error=error, retry_seconds=seconds)
            elif isinstance(error, BrokerUnavailable):
                events.broker_unavailable(error=error, retry_seconds=seconds)
            else:  # with one traceback, where the line does not say it all
                told = error if self._failures == 1 and not isinstance(error, PayloadKeyError) else str(error)
                events.duty_failed(duty="tick", error=told, retry_seconds=seconds)
        return seconds

    def _go_on(self) -> None:
        if isinstance(self._error, DatabaseUnavailable):
            events.database_available(tries=self._failures)
        elif isinstance(self._error, BrokerUnavailable):
            events.broker_available(tries=self._failures)
        else:
            events.noted(topic="tick", text=f"this beat goes on after {self._failures} tries")
        self._failures, self._error = 0, None
        self._throttle.reset()
