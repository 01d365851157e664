"""A credential that gives tokens as a test says, and what an error shows of them."""

import traceback
from collections.abc import Callable
from typing import NamedTuple

from celery_sqlbeat.store.sql.dialects.mssql_tokens import Token, Tokens

HOUR = 3600.0
EPOCH = 1_900_000_000.0
SECRET = "do-not-show-this"


class Answer(NamedTuple):
    token: str
    expires_on: float


class Credential:
    """Gives a new token of an hour at each question, or what a test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.made = 0
        self.asked = 0
        self.answers: list[Answer | Exception] = []
        self.waiting: list[Callable[[], None]] | None = None

    def asking(self) -> Callable[[], Answer]:
        self.made += 1
        return self.ask

    def ask(self) -> Answer:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else Answer(f"{SECRET} {self.asked}", self.wall() + HOUR)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wall(self) -> float:
        return EPOCH + self.now

    def start(self, run: Callable[[], None]) -> None:
        """Start the thread, at once or when the test says so."""
        if self.waiting is None:
            run()
        else:
            self.waiting.append(run)

    def tokens(self) -> Tokens:
        return Tokens(self.asking, lambda: self.now, self.wall, self.start)


def text(token: Token) -> str:
    [packed] = token.attributes().values()
    return packed[4:].decode("utf-16-le")


def shown(error: BaseException | None) -> str:
    """Return what a crash reporter would send of an error.

    Its texts, and the variables in each frame of this package.
    """
    found = ""
    while error is not None:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
        told.stack[:] = [frame for frame in told.stack if "celery_sqlbeat" in frame.filename]
        found += "".join(told.format(chain=False))
        error = error.__cause__ or error.__context__
    assert "celery_sqlbeat" in found
    return found
