"""Submit one-offs: runs that need no job, each kept in the table until it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from celery_sqlbeat import environment, events
from celery_sqlbeat.api.one_off_input import Submission, submission
from celery_sqlbeat.api.records import Run, run_of
from celery_sqlbeat.api.submitter import Submitter
from celery_sqlbeat.celery_bridge.call_check import check_arguments, check_call, registered_tasks
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.config.validation import shown
from celery_sqlbeat.errors import FieldError, IdempotencyConflict
from celery_sqlbeat.model import Claim, RunRecord, Slot
from celery_sqlbeat.model.definition import Definition, Rules
from celery_sqlbeat.model.lifecycle import CLAIMED, SCHEDULED
from celery_sqlbeat.model.one_offs import ONE_OFF, OneOff, Submitted
from celery_sqlbeat.schedule.zone import BOUNDS, within
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.protocol import OneOffStore
from celery_sqlbeat.store.records import RunQuery

Progress = Callable[[int], None]

BATCH = 500  # one-offs of one transaction
PURGED = "purged"
_TRUSTED_SECONDS = 10.0  # for which the server's clock is not read again
_MOST_CHECKED = 2000  # kinds of calls whose route and serializer are known to work


class _Item(NamedTuple):
    """One submission of a batch, as far as it is decided before it is written."""

    checked: Submission
    due_at: datetime | None
    run_id: str
    is_ours: bool
    """Whether this process publishes it itself."""


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
        (run,) = self._add([self._check(fields)])
        return run

    def submit_many(self, items: Iterable[Mapping[str, Any]], progress: Progress) -> list[Run]:
        """Submit batch by batch; the items of a batch are checked before any of it is written."""
        runs, batch, keys = list[Run](), list[Submission](), set[str]()
        for number, fields in enumerate(items):
            checked = self._numbered(number, fields)
            key = checked.key.text if checked.key else None
            if len(batch) >= BATCH or key in keys:  # of one key the second finds the run of the first
                runs += self._add(batch, progress)
                batch, keys = [], set()
            batch.append(checked)
            if key is not None:
                keys.add(key)
        return runs + self._add(batch, progress) if batch else runs

    def _numbered(self, number: int, fields: Any) -> Submission:
        if not isinstance(fields, Mapping):
            raise FieldError(f"item {number}", shown(fields), "write a mapping with the parameters of submit")
        try:
            return self._check(fields)
        except FieldError as error:
            raise FieldError(f"item {number}, {error.field}", error.value, error.remedy) from error

    def _check(self, fields: Mapping[str, Any]) -> Submission:
        own = dict(fields)
        strict = own.pop("strict", False)
        checked = submission(self._rules(), self._ids.run_ids(1)[0], **own)
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
            events.task_unknown(
                task_name=task_name,
                effect="it is not registered in this process, so its arguments are not checked",
                remedy="see that the workers of its queue have it, or correct its name; strict=True refuses such names",
            )

    def _add(self, batch: Sequence[Submission], progress: Progress = lambda _: None) -> list[Run]:
        """Write a batch, publish of it what is due now, and return its runs."""
        store, submitter = self._store(), self._submitter_here()
        until = environment.monotonic() + self._settings().dispatch_timeout
        items = self._planned(batch, submitter)
        claim_ids = iter(self._ids.claim_ids(sum(item.is_ours for item in items)))
        one_offs = [
            item.checked.one_off(item.run_id, item.due_at, next(claim_ids) if item.is_ours else None) for item in items
        ]
        done = cast(OneOffStore, store).submit(one_offs, submitter.name, self._settings().dispatch_timeout)
        answers = [done[item.run_id] for item in items]
        self._server = answers[-1].now, environment.monotonic()
        claims = [
            _claim(one_off, item.checked.definition, answer)
            for item, one_off, answer in zip(items, one_offs, answers, strict=True)
            if answer.is_new and item.is_ours and answer.fence
        ]
        if claims:
            submitter.publish(claims, until)
        progress(len(batch))
        return self._runs(store, items, answers)

    def _planned(self, batch: Sequence[Submission], submitter: Submitter) -> list[_Item]:
        """Decide what is due now, and what of that this process publishes itself."""
        due = [self._due_at(checked) for checked in batch]
        ours = [at is None and submitter.publishes(item.definition.call) for item, at in zip(batch, due, strict=True)]
        is_connected = any(ours) and submitter.connect()
        return [
            _Item(checked, at, checked.text.job_name, is_ours and is_connected)
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

    def _runs(self, store: Store, items: Sequence[_Item], answers: Sequence[Submitted]) -> list[Run]:
        """Return the runs that the submissions stand for, or raise for a key of something else."""
        earlier = [answer.run_id for answer in answers if not answer.is_new]
        rows = {row.run_id: row for row in store.runs(RunQuery(run_ids=earlier))} if earlier else {}
        for item, answer in zip(items, answers, strict=True):
            key = item.checked.key
            if not answer.is_new and key is not None and answer.digest != key.digest:
                shown_key, task_name = item.checked.shown_key or "", item.checked.text.task_name or ""
                raise IdempotencyConflict(shown_key, task_name, answer.run_id, answer.task_name)
        return [
            run_of(rows[answer.run_id]) if answer.run_id in rows else _run(item, answer)
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


def _claim(one_off: OneOff, definition: Definition, answer: Submitted) -> Claim:
    """Return the claim of the submitter, which is published as one of a beat."""
    call = definition.call
    return Claim(
        job_id=one_off.run_id,
        job_name=one_off.run_id,
        task_name=one_off.task_name,
        args=call.args,
        kwargs=call.kwargs,
        options=call.options,
        run_id=one_off.run_id,
        claim_id=one_off.claim_id or "",
        fence=answer.fence,
        slot=Slot(ONE_OFF, answer.due_at, 1, 0, 0, None, None, True, None, False),
        lease_seconds=one_off.lease_seconds,
        max_retries=one_off.max_retries,
        exclusive=True,
        code_key=None,
        max_runtime=one_off.max_runtime,
        is_sensitive=definition.policy.sensitive,
        retry=definition.policy.retry,
        pool=definition.policy.pool,
    )


def _run(item: _Item, answer: Submitted) -> Run:
    """Return the run as it was written, without reading it."""
    is_claimed = bool(answer.is_new and item.is_ours and answer.fence)
    state = (CLAIMED if is_claimed else SCHEDULED) if answer.is_new else PURGED
    row = RunRecord(
        run_id=answer.run_id,
        job_id=answer.run_id,
        job_name=answer.run_id,
        kind=ONE_OFF,
        scheduled_for=answer.due_at,
        last_slot=None,
        slot_count=1,
        attempt=1,
        state=state,
        prior_state=state,
        reason=None,
        fence=answer.fence,
        claimed_by=None,
        claimed_at=answer.now if is_claimed else None,
        published_at=None,
        started_by=None,
        started_at=None,
        finished_at=None,
        failures=0,
        lost_leases=0,
        due_at=None if is_claimed else answer.due_at,
        error=None,
        traceback=None,
        created_at=answer.now,
        task_name=item.checked.text.task_name,
    )
    return run_of(row, is_new=answer.is_new)
