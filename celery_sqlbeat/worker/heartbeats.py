"""Extends the leases of everything that this process runs, by one statement, and says what must stop."""

import logging
from collections.abc import Callable, Iterable

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.protocol import WorkerStore
from celery_sqlbeat.worker.holding import Holding, Phase, Stop
from celery_sqlbeat.worker.holdings import Holdings

logger = logging.getLogger(__name__)

_SHARE_TO_JOIN = 0.5  # of the interval: who is due that soon is extended with the others, so that all come together
_SHARE_TO_RETRY = 0.125  # of the interval: so long after a failure the next try begins
_SHORTEST_RETRY, _LONGEST_RETRY = 0.05, 1.0  # seconds


class Heartbeats:
    """The heartbeats of one process; used by one thread."""

    def __init__(self, store: WorkerStore, holdings: Holdings) -> None:
        self._store = store
        self._holdings = holdings

    def step(self) -> float:
        """Extend what is due, and what is due soon; returns the seconds until the next heartbeat."""
        now = self._holdings.clock()
        held = [one for one in self._holdings.all() if one.is_extended]
        if any(_at(one) <= now for one in held):
            share = _SHARE_TO_JOIN
            self._extend([one for one in held if one.is_recalled or now >= one.sent_at + share * one.interval])
        return max(
            0.0, min((_at(one) for one in held if one.is_extended), default=float("inf")) - self._holdings.clock()
        )

    def _extend(self, due: list[Holding]) -> None:
        with self._holdings.guard:
            # Not what has come to its end meanwhile. The others' owners see that a heartbeat is under way.
            due = [one for one in due if one.is_extended]
            for one in due:
                one.beating, one.is_recalled = True, False
        try:
            self._send(due)
        finally:
            for one in due:
                one.beating = False

    def _send(self, due: list[Holding]) -> None:
        rows = {one.run.run_id: (one.run, one.run.lease_seconds) for one in due}
        sent_at = self._holdings.clock()
        try:
            lost, busy = self._store.extend(list(rows.values()))
        except StoreError as error:
            self._try_again(due)
            logger.warning("the leases of %d runs were not extended: %s", len(rows), error)
            return
        if busy:
            passed_by = [one for one in due if one.run.run_id in busy]
            # Who writes an outcome or marks a message has its row for a moment; the next try tells who keeps it.
            level = logging.WARNING if any(one.beat_again_at > one.beat_at for one in passed_by) else logging.DEBUG
            self._try_again(passed_by)
            logger.log(level, "the leases of %d runs were not extended: somebody keeps their rows locked", len(busy))
        for one in due:
            if one.run.run_id in lost:
                self._lost(one)
            elif one.run.run_id not in busy:
                one.extended(sent_at)

    def _try_again(self, failed: Iterable[Holding]) -> None:
        now = self._holdings.clock()
        for one in failed:
            one.beat_again_at = now + min(max(_SHORTEST_RETRY, _SHARE_TO_RETRY * one.interval), _LONGEST_RETRY)

    def _lost(self, one: Holding) -> None:
        with self._holdings.guard:
            one.is_extended = False  # where its outcome is on its way, the answer to that one tells
            was = one.phase
            callback = one.must_stop(Stop.LOST) if was in (Phase.LEASED, Phase.BEGUN) else None
        if was is Phase.LEASED:
            self._holdings.remove(one)
        elif was is Phase.BEGUN:
            logger.error("run %s of job %r has lost its lease: its task is stopped", one.run.run_id, one.run.job_name)
        call(callback)


def _at(one: Holding) -> float:
    return max(one.beat_at, one.beat_again_at)


def call(callback: Callable[[], None] | None) -> None:
    """Call back; an error there must not end the heartbeats."""
    if callback is not None:
        try:
            callback()
        except Exception:
            logger.exception("a task that must stop was not told so")
