"""Check what somebody submits, field by field, and write it as a one-off. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from celery_sqlbeat import events
from celery_sqlbeat.api.job_input import (
    JobText,
    call_text,
    given_policies,
    instant,
    policies_text,
    task_parts,
)
from celery_sqlbeat.config import validation
from celery_sqlbeat.config.policy import KINDS
from celery_sqlbeat.config.validation import NotAllowed, is_text, shown
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model.definition import Definition, Rules, is_sensitive, read_definition
from celery_sqlbeat.model.one_offs import DEFAULT_TTL, ONCE, IdempotencyKey, OneOff, digest_of, kept_key

_OF_RUNS = ("max_retries", "retry_strategy", "retry_on", "dead_on", "lock_timeout", "max_runtime", "pool", "sensitive")
POLICIES = tuple(name for name in _OF_RUNS if name in KINDS)
"""The policies of one-offs; all others say when the next slot comes, and a one-off has none."""

_COUNTDOWN = validation.number(0, validation.LONGEST_WAIT, unit=" of seconds (or a timedelta)")
_TTL = validation.seconds(0, above=True)
_OWN_OPTIONS = {
    "countdown": "write it as countdown= of the submission",
    "eta": "write it as eta= of the submission",
    "task_id": "leave it out: the run id is the id of the task",
}


class Submission(NamedTuple):
    """What is to be submitted, checked; only its instant and its run id are open."""

    text: JobText
    definition: Definition
    eta: datetime | None
    countdown: float | None
    key: IdempotencyKey | None
    shown_key: str | None
    """The key as it was given."""

    def one_off(self, run_id: str, due_at: datetime | None, claim_id: str | None) -> OneOff:
        """Return it as the store takes it; `due_at` is None for now."""
        _, task_name, _, _, _, args, kwargs, options, policies, _ = self.text
        definition = self.definition
        return OneOff(
            run_id,
            task_name or "",
            args,
            kwargs,
            options,
            policies,
            due_at,
            claim_id,
            definition.lease_seconds,
            definition.max_retries,
            definition.policy.max_runtime,
            self.key,
        )


def submission(
    rules: Rules,
    run_id: str,
    task: object = None,
    args: object = None,
    kwargs: object = None,
    *,
    eta: object = None,
    countdown: object = None,
    idempotency_key: object = None,
    ttl: object = None,
    options: object = None,
    **policies: object,
) -> Submission:
    """Check a submission; raises a FieldError for the first field that cannot work."""
    own = given_policies(policies)
    if (name := next((name for name in own if name not in POLICIES), None)) is not None:
        raise FieldError(
            "Policies", name, f"a one-off has no next slot that this could be about: write one of {', '.join(POLICIES)}"
        )
    own_text = policies_text(own)
    try:
        task_name, args, kwargs, options = task_parts(task, args, kwargs, options)
        _refuse_own_options(options)
        text = JobText(run_id, task_name, ONCE, None, None, *call_text(args, kwargs, options), own_text, None)
    except FieldError as error:
        is_hidden = rules.payload_key is not None or is_sensitive(run_id, own_text, rules.policies)
        raise (error.hidden() if is_hidden else error) from None
    if eta is not None and countdown is not None:
        raise FieldError("eta", shown(eta), f"countdown = {shown(countdown)} is given, too: write one of them")
    definition = read_definition(text, rules)
    return Submission(
        text, definition, _eta(eta), _seconds("countdown", countdown, _COUNTDOWN), *_key(idempotency_key, ttl, text)
    )


def _refuse_own_options(options: object) -> None:
    for name, remedy in _OWN_OPTIONS.items():
        if isinstance(options, Mapping) and options.get(name) is not None:
            raise FieldError(f"Options.{name}", shown(options[name]), remedy)


def _eta(value: object) -> datetime | None:
    """Read an instant; one without a zone is in UTC, which is said."""
    at: Any = value
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value[:-1] + "+00:00" if value[-1:] in "Zz" else value)
        except ValueError:
            at = value
    if isinstance(at, datetime) and at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
        events.advice(
            topic="eta",
            text=f"{value} has no time zone and is taken as UTC",
            remedy="write one, such as 2027-01-31T09:00:00Z",
        )
    return instant("eta", at)


def _seconds(field: str, value: object, kind: validation.Kind) -> float | None:
    if value is None:
        return None
    try:
        seconds: float = kind.read(value.total_seconds() if isinstance(value, timedelta) else value)
    except NotAllowed as refusal:
        raise FieldError(field, shown(value), f"write {refusal.allowed}") from None
    return seconds


def _key(value: object, ttl: object, text: JobText) -> tuple[IdempotencyKey | None, str | None]:
    seconds = _seconds("ttl", ttl, _TTL)
    if value is None:
        if seconds is not None:
            raise FieldError("ttl", shown(ttl), "it is that of an idempotency_key: write one, or leave this out")
        return None, None
    if not isinstance(value, str) or not value or not is_text(value):
        raise FieldError("idempotency_key", shown(value), "write a text that is not empty and has no NUL")
    digest = digest_of(text.task_name or "", text.args, text.kwargs)
    return IdempotencyKey(kept_key(value), digest, DEFAULT_TTL if seconds is None else seconds), value
