"""Send a claim as one message, in the cheapest of the ways that give what stock beat would send.

From a template where Celery is not patched and nobody listens; by `send_task` where somebody
listens; by `apply_async` where a task or a tool has its own; by the scheduler's `apply_entry` where
a tool has wrapped that.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from celery import Celery, beat, signals
from celery.utils import time as celery_time

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.app import Routed, published_to, queue_of
from celery_sqlbeat.celery_bridge.call_check import is_stock_app, is_stock_scheduler, is_stock_task
from celery_sqlbeat.celery_bridge.message_header import HIDDEN_ARGUMENTS
from celery_sqlbeat.celery_bridge.symbols import KINDS, is_on
from celery_sqlbeat.config.validation import LONGEST_WAIT
from celery_sqlbeat.errors import SqlbeatError
from celery_sqlbeat.events import shown
from celery_sqlbeat.model import Claim
from celery_sqlbeat.publish import messages
from celery_sqlbeat.publish.messages import (
    LONGEST_LIFE,
    MOST_KINDS,
    Key,
    MessageTemplate,
    TemplateCache,
    check_in_of,
    key_of,
    routes_by_name_alone,
    template_of,
)
from celery_sqlbeat.publish.transports import MessageTransport

T = TypeVar("T")

_beat: Any = beat  # the types that Celery has elsewhere leave out what the table of symbols has
_instant_of: Any = celery_time.maybe_iso8601
_aware: Any = celery_time.maybe_make_aware


class Declined(SqlbeatError):
    """The shop's own code sent nothing for an entry, and raised nothing."""


Leases = Callable[[str | None], bool]
"""Whether all workers that consume a queue keep leases."""


class Sent(NamedTuple):
    """A message that was handed to the broker."""

    claim: Claim
    queue: str | None
    """None where an exchange alone decides on the queue, or there are several."""
    is_leased: bool
    """Whether it may begin under a lease only; else it was fired and forgotten, and says so."""
    wait_seconds: float
    """How long its countdown or eta holds it back."""
    life_seconds: float | None
    """When it expires, if it does."""
    check_in: str | None = None
    """What a monitor has opened for its slot."""

    @property
    def queued_seconds(self) -> float:
        """How long it may wait for its start before it is republished."""
        longest = min(self.claim.lease_seconds + self.wait_seconds, LONGEST_WAIT)
        return longest if self.life_seconds is None else min(longest, self.life_seconds)


class _WithoutResults:
    """The app for `send_task`, without its result backend.

    Celery would subscribe to each result, and wait for a backend that is away; beats read none.
    """

    backend = SimpleNamespace(on_task_call=lambda producer, task_id: None)

    def __init__(self, app: Any) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)


class Sender:
    """Gives one message after the other to a transport."""

    def __init__(self, app: Any, apply_entry: Any = None, entry_of: Any = None) -> None:
        self.store_id = self.namespace = ""
        self._app, self._app_without_results = app, _WithoutResults(app)
        self._apply_entry, self._entry_of = apply_entry, entry_of
        self._transport: MessageTransport | None = None
        self._templates: dict[Key | None, MessageTemplate] = {}
        self._routes_by_name = False
        self._queues: dict[Key, str | None] = {}
        """Where kinds go, for as long as templates live, and where name and options decide it."""
        self._born = 0.0
        self._raised: Exception | None = None
        self._watched = False
        self._queue: str | None = None
        self._has_lease = False
        """Of the message that was published last: where it went, and how."""

    @property
    def is_watched(self) -> bool:
        """Whether a tool watches each entry that is sent."""
        return self._entry_of is not None and not is_stock_scheduler(self._apply_entry)

    def begin_batch(self, transport: MessageTransport, leases: Leases) -> None:
        """Find out once what holds for all messages of a batch."""
        self._leases = leases
        app, conf = self._app, self._app.conf
        self._template_cache = TemplateCache(app)
        self._logs = self._entry_of is not None and _beat.logger.isEnabledFor(logging.INFO)
        # A tool may have wrapped the method since this beat was made, as at `beat_init`.
        scheduler = getattr(self._apply_entry, "__self__", None)
        self._apply_entry = getattr(scheduler, "apply_entry", self._apply_entry)
        self._is_hooked = self.is_watched
        self._is_stock = is_stock_app(app, transport.producer)
        heard = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
        self._routes_by_name = is_on(KINDS) and routes_by_name_alone(app)
        self._uses_templates = (
            self._routes_by_name
            and self._is_stock
            and not any(signal.receivers for signal in heard)
            and not conf.task_send_sent_event
            and conf.task_protocol == 2
        )
        now = environment.monotonic()
        if transport is not self._transport or transport.returned or now - self._born > LONGEST_LIFE:
            self._templates.clear()
            self._queues.clear()
            self._transport, transport.returned, self._born = transport, False, now

    def send(self, claim: Claim, transport: MessageTransport) -> Sent:
        """Hand the message of a claim to the transport, or raise."""
        label = messages.label(claim)
        transport.has_reached_broker = False
        # A monitor would be made for each one-off, whose next run never comes.
        if self._is_hooked and claim.check_in is None and not messages.is_one_off(claim):
            self._begin(claim, transport, label)
            opened = self._send_entry(claim, transport)
            return self._sent(claim, transport)._replace(check_in=opened)
        if self._logs:
            _beat.info("Scheduler: Sending due task %s (%s)", shown(claim.job_name), shown(claim.task_name))
        args = _beat._evaluate_entry_args(claim.args)
        kwargs = _beat._evaluate_entry_kwargs(claim.kwargs)
        key = key_of(claim) if self._uses_templates and claim.check_in is None else None
        template = self._templates.get(key)
        if template is not None:
            own = messages.header(claim, self.store_id, self.namespace)
            is_leased = self._is_leased(claim, template.queue)
            messages.say_how(own, is_leased, template.queue is not None)
            self._template_cache.post(transport, template, claim, args, kwargs, own, label)
            countdown, expires = template.seconds
            return Sent(claim, template.queue, is_leased, countdown or 0.0, expires)
        self._begin(claim, transport, label)
        self._send_first(claim, transport, args, kwargs, key)
        return self._sent(claim, transport)._replace(check_in=claim.check_in)

    def _is_leased(self, claim: Claim, queue: str | None) -> bool:
        return claim.exclusive and self._leases(queue)

    def _begin(self, claim: Claim, transport: MessageTransport, label: str) -> None:
        self._queue, self._has_lease = None, False

        def stamp(headers: dict[str, Any]) -> None:
            self._queue = published_to(self._app, claim, transport.first.options)
            self._has_lease = self._is_leased(claim, self._queue)
            messages.say_how(headers, self._has_lease, self._queue is not None)

        transport.begin(claim.run_id, label)
        transport.stamp = stamp

    def _send_first(
        self, claim: Claim, transport: MessageTransport, args: Sequence[Any], kwargs: Mapping[str, Any], key: Key | None
    ) -> None:
        options = self._options(claim)
        task = self._app.tasks.get(claim.task_name)
        if not self._is_stock or not is_stock_task(self._app, task):
            if task is None:
                self._app.send_task(claim.task_name, args, kwargs, producer=transport.producer, **options)
            else:
                task.apply_async(args, kwargs, producer=transport.producer, **options)
            return
        check = task.__header__ if task is not None and task.typing else None
        if task is not None:  # what its `apply_async` does before it calls `send_task`
            options = {"ignore_result": task.ignore_result, **task._get_exec_options(), **options}
            if check is not None:
                check(*args, **kwargs)
        send_task: Any = Celery.send_task
        send_task(
            self._app_without_results,
            claim.task_name,
            args,
            kwargs,
            producer=transport.producer,
            task_type=task,
            result_cls=lambda task_id: SimpleNamespace(id=task_id),
            **options,
        )
        if key is not None and len(self._templates) < MOST_KINDS:
            if claim.is_sensitive and claim.options.keys().isdisjoint(HIDDEN_ARGUMENTS):
                options = {name: value for name, value in options.items() if name not in HIDDEN_ARGUMENTS}
            template = template_of(transport, options, check, self._app.conf.task_serializer, self._queue)
            if template is not None:
                self._templates[key] = template

    def _options(self, claim: Claim) -> dict[str, Any]:
        options = messages.options(claim, self.store_id, self.namespace)
        if self._app.conf.task_protocol == 1:  # the task's name is in the body, which some workers cannot read
            options["headers"]["sqlbeat"]["task"] = claim.task_name
        return options

    def _send_entry(self, claim: Claim, transport: MessageTransport) -> str | None:
        """Send by `apply_entry`; returns the check-in that a tool has opened for the message."""
        entry = self._entry_of(claim)
        entry.options = self._options(claim)
        self._watched, self._raised = False, None
        self._apply_entry(entry, producer=transport.producer)
        if self._raised is not None:
            raise self._raised
        if not self._watched and transport.first is None:
            raise Declined("apply_entry sent nothing")
        return check_in_of(entry.options.get("headers"))

    def watch(self, send: Callable[[], T]) -> T:
        """Call what sends an entry; Celery's `apply_entry` only logs what that raises."""
        self._watched = True
        try:
            return send()
        except Exception as error:
            self._raised = error
            raise

    def _sent(self, claim: Claim, transport: MessageTransport) -> Sent:
        if transport.first is None:
            return Sent(claim, None, False, 0.0, None)
        headers = transport.first.headers
        eta, expires = headers.get("eta"), headers.get("expires")
        wait = self._seconds_until(eta) if eta else 0.0
        life = self._seconds_until(expires) if expires else None
        return Sent(claim, self._queue, self._has_lease, wait, life)

    def _seconds_until(self, instant: Any) -> float:
        return max(0.0, float((self._instant(instant) - self._app.now()).total_seconds()))

    def _instant(self, value: Any) -> datetime:
        at: datetime = _aware(_instant_of(value), self._app.timezone)
        return at

    def expires_at(self, claim: Claim, published_at: datetime) -> datetime | None:
        """Return when a message of this claim expires that was published then; None if never."""
        task = self._app.tasks.get(claim.task_name)
        expires = {**(task._get_exec_options() if task else {}), **claim.options}.get("expires")
        if isinstance(expires, (int, float)):
            return published_at + timedelta(seconds=expires)
        return None if expires is None else self._instant(expires)

    def queue_of(self, call: Routed) -> str | None:
        """Return the queue of such a message; None where an exchange decides, or unknown."""
        key = key_of(call) if self._routes_by_name else None
        if key is None:
            return queue_of(self._app, call)
        if key not in self._queues:
            if len(self._queues) >= MOST_KINDS:
                self._queues.clear()
            self._queues[key] = queue_of(self._app, call)
        return self._queues[key]
