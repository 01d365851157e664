"""Whether a failed attempt is tried again, and after how long: strategies, and the rules of jobs.

A strategy is a pure function of `RetryFacts`: the seconds to wait, or None for the dead letters at
once. One that raises, or answers nonsense, is told of, and the exponential one answers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from hashlib import blake2b
from typing import Any, NamedTuple

from celery_sqlbeat import events
from celery_sqlbeat.config.plugins import RETRY_STRATEGIES
from celery_sqlbeat.config.validation import LONGEST, shown
from celery_sqlbeat.model.lifecycle import Backoff, tried_again_in

EXPONENTIAL = "exponential"


class RetryFacts(NamedTuple):
    """All that a retry strategy is told."""

    job_name: str
    slot: str
    """Names the slot: the same for all its attempts, in each process."""
    failures: int
    """How often the slot has failed, this failure counted."""
    max_retries: int
    base: float
    """`sqlbeat_retry_base`; so the next two."""
    factor: float
    longest: float
    random: float
    """Chance from 0 to below 1, drawn once for this failure."""
    errors: tuple[str, ...] = ()
    """The qualified names of the error's class and of its bases; empty where there is no error."""

    def chance(self, failure: int) -> float:
        """Return the chance of one failure of the slot, the same each time it is asked for."""
        digest = blake2b(f"{self.slot} {failure}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 11) / 2.0**53


Strategy = Callable[[RetryFacts], float | None]


def exponential(facts: RetryFacts) -> float:
    """Wait with full jitter, from zero to a bound that grows by the factor."""
    return Backoff(facts.base, facts.factor, facts.longest).seconds(facts.failures, lambda: facts.random)


def fixed(facts: RetryFacts) -> float:
    """Wait for the base each time."""
    return min(facts.base, facts.longest)


def linear(facts: RetryFacts) -> float:
    """Wait for the base, then for twice the base, and so on."""
    return min(facts.base * facts.failures, facts.longest)


def decorrelated(facts: RetryFacts) -> float:
    """Wait from the base to three times the wait before, by chance."""
    seconds = facts.base
    for failure in range(1, facts.failures + 1):
        seconds = min(facts.base + facts.chance(failure) * (3 * seconds - facts.base), facts.longest)
    return seconds


def none(_facts: RetryFacts) -> None:
    """Try nothing again: the first failure is a dead letter."""


def classes_of(error: BaseException | type[BaseException]) -> tuple[str, ...]:
    """Return the qualified names of the error's class and of its bases, its own first."""
    kind = error if isinstance(error, type) else type(error)
    return tuple(f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__ if each is not object)


def names_one(names: Sequence[str], errors: Sequence[str]) -> bool:
    """Return whether one of these names is the error's.

    A name is that of its class or of a base, as `except` takes it, qualified or not; a glob is
    compared with its own class alone, since nearly every class has a base with a common name.
    """
    own = errors[:1]
    return any(_is_one(name, own if _is_glob(name) else errors) for name in names)


def _is_one(name: str, errors: Sequence[str]) -> bool:
    matches = _pattern(name)
    return any(matches(error) or matches(error.rpartition(".")[2]) for error in errors)


def _is_glob(name: str) -> bool:
    return any(mark in name for mark in "*?[")


@functools.lru_cache(maxsize=4096)
def _pattern(name: str) -> Callable[[str], object]:
    return re.compile(translate(name)).match


class JobBackoff(NamedTuple):
    """The backoff of one slot: the rule of its job, with the numbers of the settings."""

    strategy: str
    default: str
    """The strategy of the settings, where the worker does not know the job's own."""
    retry_on: Sequence[str] | None
    dead_on: Sequence[str] | None
    job_name: str
    slot: str
    max_retries: int
    base: float
    factor: float
    longest: float
    errors: tuple[str, ...] = ()

    def seconds(self, failures: int, random: Callable[[], float]) -> float | None:
        """Return how long to wait; None where this error, or the strategy, allows no retry."""
        if self.errors:  # else the task itself asked to be tried again
            if self.dead_on is not None and names_one(self.dead_on, self.errors):
                return None
            if self.retry_on is not None and not names_one(self.retry_on, self.errors):
                return None
        facts = RetryFacts(
            self.job_name,
            self.slot,
            failures,
            self.max_retries,
            self.base,
            self.factor,
            self.longest,
            random(),
            self.errors,
        )
        strategy = self.strategy
        if not RETRY_STRATEGIES.knows(strategy):
            _tell(strategy, f"this worker does not know it, and takes {self.default}", _INSTALL)
            strategy = self.default
        return _asked(strategy, facts)


def _asked(name: str, facts: RetryFacts) -> float | None:
    try:
        answer: Any = RETRY_STRATEGIES.load(name)(facts)
    except Exception as error:  # whatever it raises
        text = " ".join(str(error).split())
        _tell(name, f"it raised {type(error).__name__}: {text}"[:_LONGEST_TOLD], _CORRECT)
        return exponential(facts)
    if answer is None:
        return None
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not 0 <= answer <= LONGEST:
        _tell(name, f"it answered {shown(answer)!r}"[:_LONGEST_TOLD], _CORRECT)
        return exponential(facts)
    return float(answer)


_LONGEST_TOLD = 300  # characters
_INSTALL = "install the package that has it where workers run, or name it in sqlbeat_policies there"
_CORRECT = f"answer with seconds from 0 to {LONGEST:.0f}, or with None for the dead letters"
_told: set[tuple[str, str]] = set()  # strategies and their faults, each of which is told of once
_MOST_TOLD = 1000


def _tell(strategy: str, fault: str, remedy: str) -> None:
    if (strategy, fault) in _told or len(_told) >= _MOST_TOLD:
        return
    _told.add((strategy, fault))
    text = f"the retry strategy {strategy} is replaced for now: {fault}"
    events.advice(topic="retry strategy", text=text, remedy=remedy)


class Decided(NamedTuple):
    """What the process of a body has decided of its failure, in place of a backoff."""

    answer: float | None

    def seconds(self, failures: int, random: Callable[[], float]) -> float | None:
        """Return the same for whoever asks."""
        return self.answer


Again = float | Sequence[Any] | None
"""What a body's process is told before: the seconds, None for the last attempt, or a question."""


def question_of(backoff: JobBackoff, failures_before: int, luck: float) -> Again:
    """Return the question whose answer depends on the error, in plain values."""
    return [failures_before, luck, list(backoff)]


def again_after(again: Again, errors: tuple[str, ...]) -> float | None:
    """Return the seconds until another attempt after this error; None for the last one."""
    if again is None or isinstance(again, int | float):
        return again
    failures_before, luck, fields = again
    backoff = JobBackoff(*fields)._replace(errors=errors)
    return tried_again_in(failures_before, backoff.max_retries, backoff, lambda: luck)
