"""Submit one-offs: runs that need no job, each kept in the table until it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_sqlbeat import environment, events
from celery_sqlbeat.api.one_off_input import Submission, submission
from celery_sqlbeat.api.one_off_rows import Item, Place, claim_of, is_same, new_run, placed
from celery_sqlbeat.api.records import Run, run_of
from celery_sqlbeat.api.submitter import Submitter
from celery_sqlbeat.celery_bridge.call_check import check_arguments, check_call, registered_tasks
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.config.validation import shown
from celery_sqlbeat.errors import DatabaseBusy, FieldError, IdempotencyConflict, RowRefused
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import SCHEDULED
from celery_sqlbeat.model.one_offs import Submitted
from celery_sqlbeat.schedule.zone import BOUNDS, within
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import RunQuery
from celery_sqlbeat.store.submission import submit_in

Progress = Callable[[int], None]

BATCH = 500  # one-offs of one transaction
PURGED = "purged"
_TRUSTED_SECONDS = 10.0  # for which the server's clock is not read again
_MOST_CHECKED = 2000  # kinds of calls whose route and serializer are known to work


class OneOffs:
    """`beat.submit` and `beat.submit_many`."""

    def __init__(
        self, app: Any, store: Callable[[], Store], settings: Callable[[], Settings], rules: Callable[[], Rules]
    ) -> None:
        """Take functions that give what is read when it is first needed."""
        self._app = app
        self._store, self._settings, self._rules = store, settings, rules
        self._ids = environment.Ids()
        self._lock = threading.Lock()
        self._submitter: Submitter | None = None
        self._server: tuple[datetime, float] | None = None
        self._checked: set[tuple[str, str | None]] = set()
        self._unknown: set[str] = set()

    def submit(self, fields: Mapping[str, Any]) -> Run:
        """Submit one."""
        place, own = placed(fields)
        (run,) = self._add([self._check(own)], place)
        return run

    def keep(self, run_id: str, fields: Mapping[str, Any]) -> Run:
        """Submit one under the id of a task that somebody calls."""
        (run,) = self._add([self._check(dict(fields), run_id)], Place())
        return run

    def submit_many(self, items: Iterable[Mapping[str, Any]], progress: Progress) -> list[Run]:
        """Submit batch by batch; the items of a batch are checked before any of it is written."""
        runs, batch, keys, place = list[Run](), list[Submission](), set[str](), Place()
        for number, fields in enumerate(items):
            there, checked = self._numbered(number, fields)
            key = checked.key.text if checked.key else None
            # Of one key the second finds the run of the first.
            if batch and (len(batch) >= BATCH or key in keys or not is_same(place, there)):
                runs += self._add(batch, place, progress)
                batch, keys = [], set()
            batch.append(checked)
            place = there
            if key is not None:
                keys.add(key)
        return runs + self._add(batch, place, progress) if batch else runs

    def _numbered(self, number: int, fields: Any) -> tuple[Place, Submission]:
        if not isinstance(fields, Mapping):
            raise FieldError(f"item {number}", shown(fields), "write a mapping with the parameters of submit")
        place, own = placed(fields)
        try:
            return place, self._check(own)
        except FieldError as error:
            raise FieldError(f"item {number}, {error.field}", error.value, error.remedy) from error

    def _check(self, own: dict[str, Any], run_id: str | None = None) -> Submission:
        strict = own.pop("strict", False)
        checked = submission(self._rules(), run_id or self._ids.run_ids(1)[0], **own)
        call, task = checked.definition.call, registered_tasks(self._app, checked.definition.call.task_name)
        if task is None:
            self._tell_unknown(call.task_name, strict)
        kind = call.task_name, checked.text.options
        if kind in self._checked:
            try:
                check_arguments(task, call)
            except FieldError as error:
                raise (error.hidden() if call.is_hidden else error) from None
            return checked
        check_call(self._app, call)
        if len(self._checked) >= _MOST_CHECKED:
            self._checked.clear()
        self._checked.add(kind)
        return checked

    def _tell_unknown(self, task_name: str, strict: object) -> None:
        if strict:
            raise FieldError("TaskName", task_name, "no such task is registered in this app: correct it, or import it")
        if task_name not in self._unknown:
            self._unknown.add(task_name)
            events.advice(
                topic="task",
                text=f"task {task_name} is not registered in this process, so its arguments are not checked",
                remedy="see that the workers of its queue have it, or correct its name; strict=True refuses such names",
            )

    def _add(self, batch: Sequence[Submission], place: Place, progress: Progress = lambda _: None) -> list[Run]:
        """Write a batch, publish of it what is due now, and return its runs."""
        store = self._store()
        if place.is_ours:
            items, done = self._inserted(store, batch)
        else:
            items = [Item(checked, self._due_at(checked), checked.text.job_name, False) for checked in batch]
            done = submit_in(store, [item.checked.one_off(item.run_id, item.due_at, None) for item in items], *place)
        progress(len(batch))
        refused = [item for item in items if item.run_id not in done]
        if refused:
            raise RowRefused(
                f"the database refuses {len(refused)} of {len(items)} one-offs, the first for task "
                f"{refused[0].checked.text.task_name}; the event row_refused tells why, the others are submitted"
            )
        unseen = PURGED if place.is_ours else SCHEDULED  # then by the shop's own transaction
        return self._runs(store, items, [done[item.run_id] for item in items], unseen)

    def _inserted(self, store: Store, batch: Sequence[Submission]) -> tuple[list[Item], dict[str, Submitted]]:
        """Write a batch in a transaction of its own, and publish of it what is due now."""
        submitter, seconds = self._submitter_here(), self._settings().dispatch_timeout
        items = self._planned(batch, submitter)
        claim_ids = iter(self._ids.claim_ids(sum(item.is_ours for item in items)))
        one_offs = [
            item.checked.one_off(item.run_id, item.due_at, next(claim_ids) if item.is_ours else None) for item in items
        ]
        until = environment.monotonic() + seconds
        try:
            done = store.submit(one_offs, submitter.name, seconds)
        except DatabaseBusy:
            if not any(one_off.key for one_off in one_offs):
                raise
            # Of a crowd with one key the last may wait too long; the same ids get the same answer.
            done = store.submit(one_offs, submitter.name, seconds)
        for answer in done.values():
            self._server = answer.now, environment.monotonic()
        claims = [
            claim_of(one_off, item.checked.definition, answer)
            for item, one_off in zip(items, one_offs, strict=True)
            if item.run_id in done and (answer := done[item.run_id]).is_new and item.is_ours and answer.fence
        ]
        if claims:
            submitter.publish(claims, until)
        return items, done

    def _planned(self, batch: Sequence[Submission], submitter: Submitter) -> list[Item]:
        """Decide what is due now, and what of that this process publishes itself."""
        due = [self._due_at(checked) for checked in batch]
        ours = [at is None and submitter.publishes(item.definition.call) for item, at in zip(batch, due, strict=True)]
        is_connected = any(ours) and submitter.connect()
        return [
            Item(checked, at, checked.text.job_name, is_ours and is_connected)
            for checked, at, is_ours in zip(batch, due, ours, strict=True)
        ]

    def _due_at(self, checked: Submission) -> datetime | None:
        """Return the instant by the server's clock; None for now."""
        if checked.eta is None and not checked.countdown:
            return None
        now = self._server_now()
        if checked.eta is not None:
            return checked.eta if checked.eta > now else None
        try:
            at = within(now + timedelta(seconds=checked.countdown or 0))
        except OverflowError:
            at = None
        if at is None:
            raise FieldError("countdown", checked.countdown, BOUNDS)
        return at

    def _server_now(self) -> datetime:
        if self._server is None or environment.monotonic() - self._server[1] > _TRUSTED_SECONDS:
            self._server = self._store().pulse().now, environment.monotonic()
        at, read_at = self._server
        return at + timedelta(seconds=environment.monotonic() - read_at)

    def _runs(self, store: Store, items: Sequence[Item], answers: Sequence[Submitted], unseen: str) -> list[Run]:
        """Return the runs that the submissions stand for, or raise for a key of something else.

        `unseen`: the state of one that was submitted before, and is not seen.
        """
        earlier = [answer.run_id for answer in answers if not answer.is_new]
        rows = {row.run_id: row for row in store.runs(RunQuery(run_ids=earlier))} if earlier else {}
        for item, answer in zip(items, answers, strict=True):
            key = item.checked.key
            if not answer.is_new and key is not None and answer.digest != key.digest:
                shown_key, task_name = item.checked.shown_key or "", item.checked.text.task_name or ""
                raise IdempotencyConflict(shown_key, task_name, answer.run_id, answer.task_name)
        return [
            run_of(rows[answer.run_id]) if answer.run_id in rows else new_run(item, answer, unseen)
            for item, answer in zip(items, answers, strict=True)
        ]

    def _submitter_here(self) -> Submitter:
        with self._lock:
            if self._submitter is None:
                self._submitter = Submitter(self._app, self._store(), self._settings())
            return self._submitter.in_this_process()

    def close(self) -> None:
        """Record what was published, and close the connection to the broker."""
        submitter, self._submitter = self._submitter, None
        if submitter is not None:
            submitter.close()
