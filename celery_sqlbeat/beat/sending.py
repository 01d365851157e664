"""One claim becomes one message, in the cheapest of the ways that give what stock beat would send.

A likeness where Celery's functions are untouched and nobody listens; Celery's `send_task` where somebody does;
`apply_async` where a task or a tool has its own; the scheduler's `apply_entry` where a tool sits there.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import celery
import celery.beat
from celery import signals
from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_sqlbeat.beat import messages
from celery_sqlbeat.beat.check_ins import check_in_of
from celery_sqlbeat.beat.likeness import (
    LONGEST_LIFE,
    MOST_KINDS,
    Key,
    Likeness,
    Sitting,
    key_of,
    likeness,
    routes_by_name_alone,
)
from celery_sqlbeat.beat.outlets import Outlet
from celery_sqlbeat.beat.routing import published_to, queue_of
from celery_sqlbeat.beat.untouched import Quiet, is_stock_app, is_stock_scheduler, is_stock_task
from celery_sqlbeat.errors import SqlbeatError
from celery_sqlbeat.model import Claim

T = TypeVar("T")


class Declined(SqlbeatError):
    """The shop's own code sent nothing for an entry, and raised nothing."""


Leases = Callable[[str | None], bool]
"""Whether who consumes a queue keeps leases."""


class Destination(NamedTuple):
    """Where a message went, how long it waits there by its own countdown or eta, and how long it lives."""

    queue: str | None
    is_leased: bool
    """Whether it may begin under a lease only; else it was fired and forgotten, and says so."""
    wait_seconds: float
    life_seconds: float | None
    check_in: str | None = None


class Sender:
    """Gives one message after the other to an outlet."""

    def __init__(
        self,
        app: Any,
        apply_entry: Any = None,
        entry_of: Any = None,
    ) -> None:
        self.store_id = self.namespace = ""
        self._app, self._quiet = app, Quiet(app)
        self._apply_entry, self._entry_of = apply_entry, entry_of
        self._outlet: Outlet | None = None
        self._likenesses: dict[Key | None, Likeness] = {}
        self._routes_by_name = False
        self._queues: dict[Key, str | None] = {}
        """Where kinds go, for as long as likenesses live; only where the name of the task and the options decide."""
        self._born = 0.0
        self._raised: Exception | None = None
        self._watched = False
        self._queue: str | None = None
        self._has_lease = False
        """Of the message that was published last: where it went, and how."""

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to see each entry that is sent."""
        return self._entry_of is not None and not is_stock_scheduler(self._apply_entry)

    def sit(self, outlet: Outlet, leases: Leases) -> None:
        """Prepare for a batch: what holds for all of its messages is found out once."""
        self._leases = leases
        app, conf = self._app, self._app.conf
        self._sitting = Sitting(app)
        self._logs = celery.beat.logger.isEnabledFor(logging.INFO)
        self._apply_entry = _as_it_is_now(self._apply_entry)
        self._is_hooked = self.is_watched
        self._is_stock = is_stock_app(app, outlet.producer)
        heard = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
        self._routes_by_name = routes_by_name_alone(app)
        self._learns = (
            self._is_stock
            and not any(signal.receivers for signal in heard)
            and not conf.task_send_sent_event
            and conf.task_protocol == 2
            and self._routes_by_name
        )
        now = time.monotonic()
        if outlet is not self._outlet or outlet.returned or now - self._born > LONGEST_LIFE:
            self._likenesses.clear()
            self._queues.clear()
            self._outlet, outlet.returned, self._born = outlet, False, now

    def send(self, claim: Claim, outlet: Outlet) -> Destination:
        """Hand the message of a claim to the outlet, or raise."""
        label = messages.label(claim)
        outlet.has_turned = False
        if self._is_hooked and claim.check_in is None:
            self._begin(claim, outlet, label)
            opened = self._send_entry(claim, outlet)
            return self._destination(outlet)._replace(check_in=opened)
        if self._logs:
            celery.beat.info("Scheduler: Sending due task %s (%s)", claim.job_name, claim.task_name)
        args = celery.beat._evaluate_entry_args(claim.args)
        kwargs = celery.beat._evaluate_entry_kwargs(claim.kwargs)
        key = key_of(claim) if self._learns and claim.check_in is None else None
        like = self._likenesses.get(key)
        if like is not None:
            own = messages.header(claim, self.store_id, self.namespace)
            is_leased = self._is_leased(claim, like.queue)
            messages.say_how(own, is_leased, like.queue is not None)
            self._sitting.post(outlet, like, claim, args, kwargs, own, label)
            return Destination(like.queue, is_leased, like.seconds[0] or 0.0, like.seconds[1])
        self._begin(claim, outlet, label)
        self._send_first(claim, outlet, args, kwargs, key)
        return self._destination(outlet)._replace(check_in=claim.check_in)

    def _is_leased(self, claim: Claim, queue: str | None) -> bool:
        return claim.exclusive and self._leases(queue)

    def _begin(self, claim: Claim, outlet: Outlet, label: str) -> None:
        self._queue, self._has_lease = None, False

        def stamp(headers: dict[str, Any]) -> None:
            self._queue = published_to(self._app, claim, outlet.first.options)
            self._has_lease = self._is_leased(claim, self._queue)
            messages.say_how(headers, self._has_lease, self._queue is not None)

        outlet.begin(claim.run_id, label)
        outlet.stamp = stamp

    def _send_first(
        self, claim: Claim, outlet: Outlet, args: Sequence[Any], kwargs: Mapping[str, Any], key: Key | None
    ) -> None:
        options = self._options(claim)
        task = self._app.tasks.get(claim.task_name)
        if not self._is_stock or not is_stock_task(self._app, task):
            if task is None:
                self._app.send_task(claim.task_name, args, kwargs, producer=outlet.producer, **options)
            else:
                task.apply_async(args, kwargs, producer=outlet.producer, **options)
            return
        check = task.__header__ if task is not None and task.typing else None
        if task is not None:
            options = _as_apply_async_merges(task, options)
            if check is not None:
                check(*args, **kwargs)
        celery.Celery.send_task(
            self._quiet,
            claim.task_name,
            args,
            kwargs,
            producer=outlet.producer,
            task_type=task,
            result_cls=lambda task_id: SimpleNamespace(id=task_id),
            **options,
        )
        if key is not None and len(self._likenesses) < MOST_KINDS:
            like = likeness(outlet, options, check, self._app.conf.task_serializer, self._queue)
            if like is not None:
                self._likenesses[key] = like

    def _options(self, claim: Claim) -> dict[str, Any]:
        options = messages.options(claim, self.store_id, self.namespace)
        if self._app.conf.task_protocol == 1:  # it has the task's name in the body, which not every worker can read
            options["headers"]["sqlbeat"]["task"] = claim.task_name
        return options

    def _send_entry(self, claim: Claim, outlet: Outlet) -> str | None:
        """Returns the check-in that a tool has opened for it."""
        entry = self._entry_of(claim)
        entry.options = self._options(claim)
        self._watched, self._raised = False, None
        self._apply_entry(entry, producer=outlet.producer)
        if self._raised is not None:
            raise self._raised
        if not self._watched and outlet.first is None:
            raise Declined("apply_entry sent nothing")
        return check_in_of(entry.options.get("headers"))

    def watch(self, send: Callable[[], T]) -> T:
        """Call what the scheduler sends an entry with. Celery's `apply_entry` only logs what it raises."""
        self._watched = True
        try:
            return send()
        except Exception as error:
            self._raised = error
            raise

    def _destination(self, outlet: Outlet) -> Destination:
        if outlet.first is None:
            return Destination(None, False, 0.0, None)
        headers = outlet.first.headers
        eta, expires = headers.get("eta"), headers.get("expires")
        return Destination(
            self._queue,
            self._has_lease,
            self._seconds_until(eta) if eta else 0.0,
            self._seconds_until(expires) if expires else None,
        )

    def _seconds_until(self, instant: Any) -> float:
        at = maybe_make_aware(maybe_iso8601(instant), self._app.timezone)
        return max(0.0, float((at - self._app.now()).total_seconds()))

    def expires_at(self, claim: Claim, published_at: datetime) -> datetime | None:
        """When the message of this claim expires that was published then; None where it does not."""
        task = self._app.tasks.get(claim.task_name)
        expires = {**(task._get_exec_options() if task else {}), **claim.options}.get("expires")
        if expires is None:
            return None
        if isinstance(expires, (int, float)):
            return published_at + timedelta(seconds=expires)
        at: datetime = maybe_make_aware(maybe_iso8601(expires), self._app.timezone)
        return at

    def queue_of(self, claim: Claim) -> str | None:
        """The queue that the message of this claim goes to; None where that is decided elsewhere, or unknown."""
        key = key_of(claim) if self._routes_by_name else None
        if key is None:
            return queue_of(self._app, claim)
        if key not in self._queues:
            if len(self._queues) >= MOST_KINDS:
                self._queues.clear()
            self._queues[key] = queue_of(self._app, claim)
        return self._queues[key]


def _as_it_is_now(apply_entry: Any) -> Any:
    """The scheduler's method: a tool may have wrapped it since this beat was made, as at `beat_init`."""
    return getattr(getattr(apply_entry, "__self__", None), "apply_entry", apply_entry)


def _as_apply_async_merges(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**task._get_exec_options(), **options}
    merged.setdefault("ignore_result", task.ignore_result)
    return merged
