"""Functions as a shop would write them: retry strategies, kinds of schedule, claim orders."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery_sqlbeat.model.claim_orders import Candidate
from celery_sqlbeat.model.retries import RetryFacts

NOT_CALLABLE = 7


def patient(facts: RetryFacts) -> float:
    """Wait by the kind of the error."""
    return 900.0 if "builtins.ConnectionError" in facts.errors else 1.5 * facts.failures


def hopeless(_facts: RetryFacts) -> None:
    """Give up at once."""


def broken(_facts: RetryFacts) -> float:
    """Fail."""
    raise ZeroDivisionError("of the strategy")


def nonsense(facts: RetryFacts) -> Any:
    """Answer with what the slot's name says."""
    return {
        "nan": float("nan"),
        "inf": float("inf"),
        "negative": -1,
        "text": "soon",
        "flag": True,
        "huge": 10**400,
    }[facts.slot]


class Minutes:
    """Fires at each whole multiple of so many minutes since 2000."""

    def __init__(self, minutes: int) -> None:
        if minutes < 1:
            raise ValueError("write a whole number of minutes of at least 1")
        self.step = timedelta(minutes=minutes)

    def next_after(self, instant: datetime, zone: tzinfo) -> datetime:
        """Return the next multiple."""
        start = datetime(2000, 1, 1, tzinfo=timezone.utc)
        return start + ((instant - start) // self.step + 1) * self.step


def minutes(text: str) -> Minutes:
    """Read `minutes N`."""
    return Minutes(int(text))


class Answers:
    """Answers always the same."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def next_after(self, instant: datetime, zone: tzinfo) -> Any:
        """Return it, or raise it."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def answers(text: str) -> Any:
    """Read what is to be answered."""
    return {
        "never": Answers(None),
        "naive": Answers(datetime(2027, 1, 1)),  # noqa: DTZ001 - the mistake under test
        "past": Answers(datetime(1999, 1, 1, tzinfo=timezone.utc)),
        "text": Answers("tomorrow"),
        "raises": Answers(ZeroDivisionError("of the kind")),
        "nothing": None,
    }[text]


def youngest(due: Sequence[Candidate]) -> Sequence[Candidate]:
    """Claim the last one that came due, and say nothing of the others."""
    return due[-1:]


def confused(due: Sequence[Candidate]) -> Any:
    """Answer with something else than candidates."""
    return ["first", "second"]
