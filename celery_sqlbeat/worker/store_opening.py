"""The opening of a worker's store, in a native thread that tries until the database has answered.

Until then questions wait here for a bounded time.
"""

import os
from collections import deque
from collections.abc import Callable

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.message_header import Header
from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import StoreError, TablesMissing
from celery_sqlbeat.store import Store, open_store
from celery_sqlbeat.worker.lease import StartAnswer, StoreUnavailable, WrongStore
from celery_sqlbeat.worker.lease.starts import StartQuestion

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 1.0  # seconds between two tries; half of it is jitter
_AFTER_ERROR = 10.0  # seconds; after an error that nobody expected
_NOT_GIVEN = (
    "this worker was given no sqlbeat_database_url, and the default, {}, has no tables of celery-sqlbeat: "
    "it keeps no leases, and of the scheduled tasks it runs only what beats fire and forget; give it the address "
    "that the beats have, by the setting sqlbeat_database_url or by SQLBEAT_DATABASE_URL in its environment"
)


EarlyQuestion = tuple[Header, StartQuestion]
"""A question that came before the database had answered for the first time."""


class StoreOpening:
    """Opens the store of one worker. For any thread; nothing blocks."""

    def __init__(
        self, settings: Settings, is_configured: bool, ask_seconds: float, begin: Callable[[Store, str], None]
    ) -> None:
        """`begin` is called once, in the native thread, with the store and its id.

        `is_configured`: whether the app names a database; if not, nobody may have told this worker
        of one.
        """
        self._settings = settings
        self._is_configured = is_configured
        self._ask_seconds = ask_seconds
        self._begin = begin
        self._early: deque[EarlyQuestion] = deque()
        self._lock = environment.lock()
        self._wakeup = environment.wakeup()
        self._is_wanted = False
        self.is_running = False
        self.has_no_store = False
        """Whether the database of this worker is not there, or has no tables."""
        self.reason: str | None = None
        """Why the store could not be opened, as it was last reported."""
        self._is_done = False

    def start(self) -> None:
        """Begin to try, in the process that consumes, and only there."""
        with self._lock:
            if self._is_wanted:
                return
            self._is_wanted = self.is_running = True
        environment.start_thread(self._run)

    def stop(self) -> bool:
        """Try no more; return whether it had been started."""
        with self._lock:
            was_wanted, self._is_wanted = self._is_wanted, False
        self._wakeup.ring()
        return was_wanted

    def keep(self, header: Header, question: StartQuestion) -> bool:
        """Keep a question until the store is open; return False where it is open already."""
        self.start()
        with self._lock:
            if self._is_done:
                return False
            question.give_up_at = environment.monotonic() + self._ask_seconds
            self._early.append((header, question))
        self._wakeup.ring()
        return True

    def done(self, install: Callable[[], None]) -> list[EarlyQuestion] | None:
        """Let `install` publish what was opened; return the questions, None if the worker ends."""
        with self._lock:
            if not self._is_wanted:
                return None
            install()
            self._is_done = True
            was_reported, self.reason = self.reason is not None, None
            early, self._early = list(self._early), deque()
        if was_reported:
            events.worker_ready()
        return early

    # The rest runs in the native thread.

    def _run(self) -> None:
        wait = _FIRST_WAIT
        try:
            while self._is_wanted:
                try:
                    if _may_be_asked(self._settings.database_url):
                        self._open()
                        return
                    address = self._settings.database_url
                    self._miss(f"there is no {address} yet; start a beat, or run `celery sqlbeat init`")
                except TablesMissing as error:
                    self._miss(str(error))
                except StoreError as error:
                    self._report(str(error))
                except Exception as error:
                    events.fault_caught(doing="open the store of a worker", error=error)
                    wait = _AFTER_ERROR
                self._wakeup.sleep(min(wait * (0.5 + 0.5 * environment.chance()), self._give_up()))
                wait = min(_LONGEST_WAIT, 2 * wait)
        finally:
            self.is_running = False

    def _open(self) -> None:
        store = open_store(self._settings)
        try:
            schema = store.check_schema()
        except BaseException:
            store.close()
            raise
        if schema.remark:
            events.noted(topic="schema", text=schema.remark)
        self._begin(store, schema.store_id)

    def _miss(self, text: str) -> None:
        """Report that there is no store yet: what beats send meanwhile belongs to another one."""
        # At the second try: a beat that starts in this moment makes the default one.
        is_second, self.has_no_store = self.has_no_store, True
        # The next worker that gets these messages knows by then, this one included.
        self._answer(lambda header, _: header.forgotten, WrongStore("this worker has no store"))
        if self._is_configured:
            self._report(text)
        elif is_second and self.reason is None:
            self.reason = text
            text, _, remedy = _NOT_GIVEN.format(self._settings.database_url).rpartition("; ")
            events.advice(topic="database", text=text, remedy=remedy)

    def _report(self, text: str) -> None:
        if text != self.reason:
            self.reason = text
            events.worker_not_ready(reason=text)

    def _give_up(self) -> float:
        """Answer the questions that have waited for too long; return the seconds until the next."""
        now = environment.monotonic()
        answer = StoreUnavailable("the database could not be asked")
        self._answer(lambda _, question: question.give_up_at <= now, answer)
        with self._lock:
            return max(0.01, min((question.give_up_at for _, question in self._early), default=float("inf")) - now)

    def _answer(self, is_meant: Callable[[Header, StartQuestion], bool], answer: StartAnswer) -> None:
        with self._lock:
            chosen = [question for header, question in self._early if is_meant(header, question)]
            self._early = deque(early for early in self._early if not is_meant(*early))
        for question in chosen:
            question.answer(answer)


def _may_be_asked(url: DatabaseUrl) -> bool:
    """Return whether the database may be asked: a worker must make no file of its own."""
    return url.database != "sqlite" or url.in_memory or os.path.exists(url.name or "")
