"""What one worker process has of the database: whose store it is, the keeper and its threads, and the rules of endings.

Opened by a native thread that goes on until the database has answered; until then whoever asks waits a bounded time.
"""

import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from celery_sqlbeat.config import Settings
from celery_sqlbeat.errors import StoreError, TablesMissing
from celery_sqlbeat.model import Node, StartRequest
from celery_sqlbeat.store import Store, open_store
from celery_sqlbeat.unpatched import original
from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.answers import Answer, Away, Foreign
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.engine import Engine
from celery_sqlbeat.worker.header import Header
from celery_sqlbeat.worker.holding import Holding
from celery_sqlbeat.worker.keeper import Keeper
from celery_sqlbeat.worker.looking import is_there, not_given, not_there
from celery_sqlbeat.worker.loops import PipedLoop
from celery_sqlbeat.worker.outcomes import Then
from celery_sqlbeat.worker.received import Received
from celery_sqlbeat.worker.slot_results import SlotResults
from celery_sqlbeat.worker.standing import Standing
from celery_sqlbeat.worker.timing import Timing
from celery_sqlbeat.worker.verdicts import Verdicts

logger = logging.getLogger(__name__)

_FIRST_LOOK, _LONGEST_LOOK = 0.5, 1.0  # seconds between two tries to open the store; half of it is jitter
_AFTER_ERROR = 10.0  # seconds; after an error that nobody expected
_LONGEST_ENDING = 10.0  # seconds that the end of a worker waits for its outcomes to be written


class Early(NamedTuple):
    """A message that came before the database had answered for the first time."""

    header: Header
    request: StartRequest
    answered: Callable[[Answer], None]
    ahead: bool
    give_up_at: float


class Office:
    """The database as one worker process sees it. Its methods may be called from any thread, and do not block."""

    def __init__(
        self,
        settings: Settings,
        describe: Callable[[], Node],
        is_configured: bool,
        timing: Timing | None = None,
        received: Received | None = None,
        results: SlotResults | None = None,
    ) -> None:
        """`is_configured`: whether the app names a database. If not, this may be a worker that nobody told."""
        self.settings = settings
        self.store_id: str | None = None
        self.keeper: Keeper | None = None
        self.results = results
        self._describe = describe
        self._is_configured = is_configured
        self._timing = timing or Timing.of(settings)
        self._verdicts = Verdicts(settings)
        self._received = received
        self._early: deque[Early] = deque()
        self._lock = native.lock()
        self._alarm = native.alarm()
        self._stores: list[Store] = []
        self._engine: Engine | None = None
        self._loop: PipedLoop | None = None
        self._is_open = self._is_opening = False
        self._is_storeless = False
        """Whether the database of this worker is not there, or has no tables."""
        self._said: str | None = None
        self._pid = os.getpid()

    def open(self) -> None:
        """Start, in the process that consumes, and only there."""
        with self._lock:
            if self._is_open:
                return
            self._is_open = self._is_opening = True
        native.start(self._open)

    def ask(
        self,
        header: Header,
        request: StartRequest,
        answered: Callable[[Answer], None],
        ahead: bool = False,
    ) -> None:
        """Ask whether a message may begin; `answered` is called once, from any thread."""
        if self.keeper is None:
            self.open()
            with self._lock:
                if self.keeper is None:
                    give_up_at = time.monotonic() + self._timing.ask_seconds
                    self._early.append(Early(header, request, answered, ahead, give_up_at))
                    self._alarm.ring()
                    return
        self._ask(self.keeper, header, request, answered, ahead)

    def is_own(self, header: Header) -> bool:
        """Whether a message is known to be of this worker's store and namespace."""
        return self.keeper is not None and self._is_mine(header)

    def is_for_anybody(self, header: Header) -> bool:
        """Whether a message that was fired and forgotten is none of this worker's store."""
        return self._is_storeless if self.keeper is None else not self._is_mine(header)

    @property
    def is_away(self) -> bool:
        """Whether the database is known to be away: an answer may take long."""
        # A worker that has only just begun to ask knows nothing yet.
        return self._said is not None if self.keeper is None else self.keeper.is_away

    def hurry(self, keeps_slot: bool) -> None:
        """What was asked ahead could begin now, but for the answer."""
        if self.keeper is not None:
            self.keeper.hurry(keeps_slot)

    def withdraw(self, request: StartRequest) -> None:
        """Want no answer any more."""
        with self._lock:
            self._early = deque(one for one in self._early if one.request is not request)
        if self.keeper is not None:
            self.keeper.withdraw(request)

    def recall(self, run_ids: Collection[str]) -> int:
        """Look at once whether these runs are still held; returns how many of them are here."""
        return self.keeper.recall(run_ids) if self.keeper is not None else 0

    def finish(
        self,
        holding: Holding,
        end: End,
        error: str | None = None,
        traceback: str | None = None,
        then: Then | None = None,
    ) -> None:
        """Write how a task ended."""
        if self.keeper is not None:  # always: it has made the holding
            if holding.run.attempt > 1 and self.results is not None:
                then = partial(self._slot_ended, then)
            self.keeper.finish(holding, self._verdicts.ending(holding, end, error, traceback), then)

    def _slot_ended(self, then: Then | None, written: bool) -> None:
        if written and self.results is not None:
            self.results.slot_ended(self._stores[0])
        if then is not None:
            then(written)

    def tried_again_in(self, holding: Holding) -> float | None:
        """The seconds until another attempt, should this one fail; None where it is the last one."""
        return self._verdicts.tried_again_in(holding)

    def unstart(self, holding: Holding, then: Then | None = None) -> None:
        """Give back a run whose body never ran."""
        if self.keeper is not None:
            self.keeper.unstart(holding, then)

    def retrying(self, holding: Holding, seconds: float, then: Then) -> None:
        """Celery's own retry follows in so many seconds."""
        if self.keeper is not None:
            self.keeper.retrying(holding, seconds, then)

    def queues_changed(self) -> None:
        """Say soon which queues this worker consumes now, and whatever else others know of it."""
        if self.keeper is not None:
            self.keeper.say_alive_soon()

    def join(self, loop: PipedLoop) -> None:
        """The event loop begins, and may talk to the database where nobody has to wait for that. In the loop."""
        self._loop = loop
        if self._engine is not None and self._stores[0].database.answers_later:
            self._engine.serving.join(loop)

    def _join_again(self) -> None:
        """The database has answered for the first time; the loop may have ended since."""
        if self._loop is not None:
            self.join(self._loop)

    def leave(self) -> None:
        """The event loop ends. In the loop."""
        self._loop = None
        if self._engine is not None:
            self._engine.serving.leave()

    def settle(self, seconds: float = _LONGEST_ENDING) -> None:
        """Wait until what has ended is written, but not longer."""
        sleep = original("time", "sleep")  # gevent allows no green one where a signal ends the worker
        end = time.monotonic() + seconds
        while self.keeper is not None and not self.keeper.is_idle and time.monotonic() < end:
            sleep(0.01)

    def close(self) -> None:
        """Write what is left, say that this worker has stopped, and end the threads."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        self._alarm.ring()
        if not was_open or os.getpid() != self._pid:
            return
        self._see_opening_end()
        if self._engine is not None:
            if not self._engine.stop(_LONGEST_ENDING):
                logger.error("some outcomes could not be written; their runs are taken over when their leases end")
            try:
                self._engine.keeper.leave()
            except StoreError as error:
                logger.warning("this worker could not say that it has stopped: %s", error)
        for store in self._stores:
            store.close()

    def _ask(
        self,
        keeper: Keeper,
        header: Header,
        request: StartRequest,
        answered: Callable[[Answer], None],
        ahead: bool,
    ) -> None:
        if self._is_mine(header):
            keeper.ask(request, answered, ahead)
            return
        there = f"store {header.store}, namespace {header.namespace!r}"
        here = f"store {self.store_id}, namespace {self.settings.namespace!r}"
        answered(Foreign(f"it is of {there}, and this worker is on {here}"))

    def _is_mine(self, header: Header) -> bool:
        return header.store == self.store_id and header.namespace == self.settings.namespace

    def _open(self) -> None:
        """Try until the database has answered; in a native thread."""
        try:
            self._try_to_open()
        finally:
            self._is_opening = False

    def _see_opening_end(self) -> None:
        """Under gevent a database's driver waits in a green thread, also there; Python may not end in its midst."""
        sleep = original("time", "sleep")
        end = time.monotonic() + _LONGEST_ENDING
        while native.is_patched() and self._is_opening and time.monotonic() < end:
            sleep(0.01)

    def _try_to_open(self) -> None:
        wait = _FIRST_LOOK
        while self._is_open:
            try:
                if is_there(self.settings.database_url):
                    self._begin()
                    return
                self._miss(not_there(self.settings.database_url))
            except TablesMissing as error:
                self._miss(str(error))
            except StoreError as error:
                self._say(str(error))
            except Exception:
                logger.exception("the worker cannot keep leases")
                wait = _AFTER_ERROR
            self._give_up()
            with self._lock:
                soonest = min((one.give_up_at for one in self._early), default=float("inf"))
            seconds = wait * (0.5 + 0.5 * random.random())  # noqa: S311 - no secret
            self._alarm.sleep(min(seconds, max(0.01, soonest - time.monotonic())))
            wait = min(_LONGEST_LOOK, 2 * wait)

    def _miss(self, text: str) -> None:
        """There is no store, and somebody may make it yet. Until then whoever sends messages has another one."""
        with self._lock:
            # At the second look: a beat that starts in this moment makes the default one.
            is_second, self._is_storeless = self._is_storeless, True
            early = [one for one in self._early if one.header.forgotten]
            self._early = deque(one for one in self._early if not one.header.forgotten)
        for one in early:  # the next worker that gets it knows by then, this one included
            native.called(lambda one=one: one.answered(Foreign("this worker has no store")))  # type: ignore[misc]
        if self._is_configured:
            self._say(text)
        elif is_second and self._said is None:
            self._said = text
            logger.warning("%s", not_given(self.settings.database_url))

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            logger.warning("this worker cannot keep leases yet, and begins no scheduled task: %s", text)

    def _begin(self) -> None:
        store = open_store(self.settings)
        self._stores.append(store)
        try:
            remark = store.check_schema().remark
            store_id, _ = store.nodes().identity()
        except BaseException:
            self._stores.remove(store)
            store.close()
            raise
        if remark:
            logger.info("%s", remark)
        beats = open_store(self.settings)  # a connection of its own, so that no slow start delays a heartbeat
        self._stores.append(beats)
        name = self._describe().node_id

        def make(wake: Callable[[str], None]) -> Keeper:
            standing = Standing(beats.nodes(), self._describe, self.settings.heartbeat_interval, time.monotonic)
            return Keeper(
                store.for_worker(name),
                self._timing,
                time.monotonic,
                wake,
                beats.for_worker(name),
                standing,
                native.lock(),
                self._verdicts.overdue,
                self._received,
            )

        engine = Engine(make, original("_thread", "start_new_thread"), original("_thread", "allocate_lock"))
        with self._lock:
            if not self._is_open:
                return
            self._engine, self.store_id, self.keeper = engine, store_id, engine.keeper
            was_missed, self._said = self._said, None
            early, self._early = self._early, deque()
            loop = self._loop
        if self._received is not None:
            self._received.look_soon = engine.keeper.look_soon
        engine.start()
        if was_missed is not None:
            logger.info("this worker keeps leases now")
        if loop is not None:
            loop.post(self._join_again)
        for one in early:
            self._ask(engine.keeper, one.header, one.request, one.answered, one.ahead)

    def _give_up(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [one for one in self._early if one.give_up_at <= now]
            self._early = deque(one for one in self._early if one.give_up_at > now)
        for one in late:
            native.called(lambda one=one: one.answered(Away("the database could not be asked")))  # type: ignore[misc]
