"""Choose how a job behaves when it is late, overlaps itself or fails.

The most specific policy wins: defaults, globs from short to long, the exact name, the row itself.
"""

import fnmatch
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_sqlbeat.config import plugins, validation
from celery_sqlbeat.config.pools import POOL_ALLOWED, checked_pool
from celery_sqlbeat.errors import FieldError, SettingError, SqlbeatError

SHORTEST_LEASE = 1.0  # seconds; below it three heartbeats and a stop no longer fit between two statements
SHORTEST_RUNTIME = 0.1  # seconds; a task that may take less than that has no time to begin
MOST_RETRIES = 1000  # with the longest backoff of ten minutes that is a week; more is a job, not a retry
MOST_CAUGHT_UP = 1000  # slots; one batch

MOST_PARALLEL = 1000  # runs; more is no limit

QUEUE, SKIP, ALLOW, REPLACE = OVERLAPS = ("queue", "skip", "allow", "replace")
"""What becomes of a slot that comes due while the run before it goes on."""


def errors() -> validation.Kind:
    """Return the kind of a list of classes of errors, by name or glob."""

    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not 0 < len(value) <= MOST_ERRORS:
            raise ValueError
        if not all(isinstance(each, str) and _is_error(each) for each in value):
            raise ValueError
        return tuple(value)

    allowed = f"a list of 1 to {MOST_ERRORS} names or globs of errors' classes, such as ['ValueError', 'requests.*']"
    return validation.Kind(allowed, check)


_is_error = re.compile(r"[\w.*?\[\]!-]{1,200}").fullmatch
MOST_ERRORS = 50  # names or globs; they travel with each message

Fields = Mapping[str, Any]  # validated policies that somebody set; the others are left to what is less specific
ErrorAt = Callable[[str | None, object, str], SqlbeatError]  # field (None: the whole), value, what is allowed


class RetryRule(NamedTuple):
    """What a job says of its retries beyond their number; None leaves it to the settings."""

    strategy: str | None = None
    retry_on: Sequence[str] | None = None
    dead_on: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The policies of one job; durations are seconds, None means the setting of the same name."""

    cadence: str = "from_start"
    overlap: str = "queue"
    misfire: str = "coalesce"
    misfire_grace: float | None = None
    catch_up_limit: int = 10
    max_retries: int | None = None
    lock_timeout: float | None = None
    max_runtime: float | None = None
    timezone: str | None = None
    jitter: float = 0.0
    max_parallel: int | None = None
    sensitive: bool = False
    retry_strategy: str | None = None
    retry_on: tuple[str, ...] | None = None
    dead_on: tuple[str, ...] | None = None
    pool: str | None = None

    @property
    def retry(self) -> RetryRule | None:
        """What the worker must know of retries beyond their number; None: nothing."""
        rule = RetryRule(self.retry_strategy, self.retry_on, self.dead_on)
        return None if rule == _NO_RULE else rule


_NO_RULE = RetryRule()
DEFAULT = Policy()

KINDS: Mapping[str, validation.Kind] = {
    "cadence": validation.one_of("from_start", "fixed_rate", "fixed_delay"),
    "overlap": validation.one_of(*OVERLAPS),
    "max_parallel": validation.optional(validation.whole(1, MOST_PARALLEL), "as many as there are slots"),
    "misfire": validation.one_of("coalesce", "skip", "catch_up"),
    "misfire_grace": validation.optional(validation.seconds(0), "no grace of its own"),
    "catch_up_limit": validation.whole(1, MOST_CAUGHT_UP),
    "max_retries": validation.optional(validation.whole(0, MOST_RETRIES), "sqlbeat_max_retries"),
    "lock_timeout": validation.optional(validation.seconds(SHORTEST_LEASE), "sqlbeat_lock_timeout"),
    "max_runtime": validation.optional(validation.seconds(SHORTEST_RUNTIME), "for as long as it likes"),
    "timezone": validation.optional(validation.time_zone(), "the time zone of the job or the app"),
    "jitter": validation.seconds(0),
    "sensitive": validation.flag(),
    "retry_strategy": validation.optional(plugins.known(plugins.RETRY_STRATEGIES), "sqlbeat_retry_strategy"),
    "retry_on": validation.optional(errors(), "each error is retried"),
    "dead_on": validation.optional(errors(), "no error is left out"),
    "pool": validation.optional(validation.Kind(POOL_ALLOWED, checked_pool), "no pool"),
}


def policy_fields(mapping: object, error: ErrorAt) -> dict[str, Any]:
    """Return the checked policies of a mapping; `error` makes the error for a bad one."""
    if not isinstance(mapping, Mapping):
        raise error(None, validation.shown(mapping), f"a mapping with any of {_names()}")
    clean = {}
    for key, value in mapping.items():
        kind = KINDS.get(key) if isinstance(key, str) else None
        if kind is None:
            raise error(None, validation.shown(key), f"no such policy; there are {_names()}")
        try:
            clean[key] = kind.read(value)
        except validation.NotAllowed as refusal:
            raise error(key, validation.shown(value), refusal.allowed) from None
    return clean


@functools.lru_cache(maxsize=4096)  # the rows of a batch repeat few texts
def fields_from_text(text: str) -> Fields:
    """Return the policies in the column `Policies`, or raise a FieldError for the quarantine."""
    try:
        mapping = validation.from_json(text)
    except ValueError:
        raise FieldError("Policies", text, 'not JSON; write an object, like {"overlap": "allow"}') from None
    return MappingProxyType(policy_fields(mapping, row_error))  # shared by all who ask, so nobody may change it


def row_error(key: str | None, value: object, allowed: str) -> FieldError:
    """Return the error of a policy in a row, for `policy_fields`."""
    if key is None:
        return FieldError("Policies", value, allowed)
    return FieldError(f"Policies.{key}", value, f"write {allowed}")


def _names() -> str:
    return ", ".join(KINDS)


@dataclass(frozen=True, eq=False)  # compared by identity: it is the key of a cache on the hot path
class Policies:
    """The setting `sqlbeat_policies`: policies per job name or glob."""

    rules: Mapping[str, Fields] = field(default_factory=dict)

    @functools.cached_property
    def _globs(self) -> list[tuple[re.Pattern[str], Fields]]:
        # sorted() keeps the order of equally long ones, so of those the later wins.
        globs = sorted(self.rules, key=len)
        return [(re.compile(fnmatch.translate(glob)), self.rules[glob]) for glob in globs]


@functools.lru_cache(maxsize=16384)  # names; a bound, since jobs come and go
def _policy_by_name(name: str, policies: Policies) -> Policy:
    merged: dict[str, Any] = {}
    for pattern, fields in policies._globs:
        if pattern.match(name):
            merged.update(fields)
    merged.update(policies.rules.get(name, {}))
    return replace(DEFAULT, **merged) if merged else DEFAULT


def policy_for(name: str, policies: Policies, own: Fields | None = None) -> Policy:
    """Return the policy of the job of this name, whose row has these policies of its own."""
    policy = _policy_by_name(name, policies) if policies.rules else DEFAULT
    return replace(policy, **own) if own else policy


def policies_from_setting(value: object) -> Policies:
    """Return the checked value of `sqlbeat_policies`.

    A SettingError names the pattern and the policy that cannot work.
    """
    if not isinstance(value, Mapping):
        raise SettingError(
            "sqlbeat_policies", validation.shown(value), "a mapping from job name or glob to its policies"
        )
    rules = {}
    for pattern, mapping in value.items():
        if not isinstance(pattern, str) or not pattern:
            raise SettingError(
                "sqlbeat_policies", validation.shown(pattern), "each key is a job name or a glob, like '*'"
            )
        if isinstance(mapping, Mapping):  # a row may name only what is known by then
            plugins.add_path(plugins.RETRY_STRATEGIES, mapping.get("retry_strategy"))
        rules[pattern] = policy_fields(mapping, functools.partial(_setting_error, pattern))
    return Policies(rules)


def _setting_error(pattern: str, key: str | None, value: object, allowed: str) -> SettingError:
    place = f"sqlbeat_policies[{pattern!r}]"
    return SettingError(place if key is None else f"{place}[{key!r}]", value, allowed)


def globs() -> validation.Kind:
    """Return the kind of a list of globs; in a variable they are parted by commas."""
    allowed = 'a list of names or globs, such as ["billing.*"]'

    def read(value: object) -> tuple[str, ...]:
        names = value if isinstance(value, (list, tuple)) else ()
        if not names or not all(isinstance(each, str) and each.strip() for each in names):
            raise validation.NotAllowed(allowed)
        return tuple(each.strip() for each in names)

    return validation.Kind(allowed, read, lambda text: read(text.split(",")))
