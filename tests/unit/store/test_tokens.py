"""A token is asked for in time, off the way of whoever connects, and shown to nobody."""

import importlib.util
import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple

import pytest

from celery_sqlbeat.store import tokens
from celery_sqlbeat.store.tokens import RENEW_SECONDS, RETIRE_SECONDS, RETRY_SECONDS, Token, TokenAway, Tokens

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
        """The thread: at once, or when the test says so."""
        if self.waiting is None:
            run()
        else:
            self.waiting.append(run)

    def tokens(self) -> Tokens:
        return Tokens(self.asking, lambda: self.now, self.wall, self.start)


def text(token: Token) -> str:
    return token.told(str)


def shown(error: BaseException | None) -> str:
    """What a crash reporter would send of an error: its texts, and the variables in each frame of this package."""
    found = ""
    while error is not None:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
        told.stack[:] = [frame for frame in told.stack if "celery_sqlbeat" in frame.filename]
        found += "".join(told.format(chain=False))
        error = error.__cause__ or error.__context__
    assert "celery_sqlbeat" in found
    return found


def test_the_first_token_is_waited_for_and_the_next_users_share_it() -> None:
    credential = Credential()
    some = credential.tokens()
    assert some.current(1) is some.current(1)
    assert (credential.made, credential.asked) == (1, 1)


def test_nobody_waits_longer_than_his_patience_and_the_answer_is_there_the_next_time() -> None:
    credential = Credential()
    credential.waiting = []
    some = credential.tokens()
    with pytest.raises(TokenAway, match=r"no token within 0\.01 s"):
        some.current(0.01)
    with pytest.raises(TokenAway):
        some.current(0.01)
    (run,) = credential.waiting  # one question at a time
    run()
    assert text(some.current(0)) == f"{SECRET} 1"


def test_a_token_is_renewed_before_its_end_while_the_old_one_is_used() -> None:
    credential = Credential()
    some = credential.tokens()
    first = some.current(1)
    credential.waiting = []
    credential.now += HOUR - RENEW_SECONDS
    assert some.current(0) is first
    assert not some.is_retired(first)
    (renew,) = credential.waiting
    renew()
    second = some.current(0)
    assert second is not first and text(second) == f"{SECRET} 2"
    assert not some.is_retired(first)  # it still has some minutes
    credential.now += RENEW_SECONDS - RETIRE_SECONDS
    assert some.is_retired(first)
    assert not some.is_retired(second)


def test_to_look_at_a_connection_renews_the_token_too() -> None:
    """A process whose connections live long asks for no token otherwise."""
    credential = Credential()
    some = credential.tokens()
    first = some.current(1)
    credential.now += HOUR - RENEW_SECONDS
    assert not some.is_retired(first)
    assert credential.asked == 2


def test_a_jump_of_the_hosts_clock_neither_ends_a_token_nor_prolongs_it() -> None:
    credential = Credential()
    jump = 0.0
    some = Tokens(credential.asking, lambda: credential.now, lambda: credential.wall() + jump, credential.start)
    first = some.current(1)
    jump = 86400.0
    assert not some.is_retired(first)
    jump = -86400.0
    credential.now += HOUR
    assert some.is_retired(first)


def test_a_credential_that_fails_is_asked_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    credential = Credential()
    credential.answers = [RuntimeError("no managed\nidentity endpoint"), RuntimeError("again")]
    some = credential.tokens()
    with caplog.at_level(logging.WARNING), pytest.raises(TokenAway, match="RuntimeError: no managed identity endpoint"):
        some.current(1)
    assert "no managed identity endpoint" in caplog.text
    with pytest.raises(TokenAway, match="no managed identity"):
        some.current(1)
    assert credential.asked == 1
    credential.now += RETRY_SECONDS
    with pytest.raises(TokenAway, match="again"):
        some.current(1)
    credential.now += RETRY_SECONDS
    assert text(some.current(1)) == f"{SECRET} 3"


def test_a_failed_renewal_leaves_the_token_in_use_until_its_end() -> None:
    credential = Credential()
    some = credential.tokens()
    first = some.current(1)
    credential.answers = [RuntimeError("away")] * 100
    credential.now += HOUR - RENEW_SECONDS
    assert some.current(0) is first
    credential.now += RENEW_SECONDS - RETIRE_SECONDS
    with pytest.raises(TokenAway, match="away"):
        some.current(0)


def test_a_refused_token_is_replaced_once_and_a_new_one_that_is_refused_is_not() -> None:
    credential = Credential()
    some = credential.tokens()
    first = some.current(1)
    credential.now += HOUR / 2
    assert some.refused(first)
    assert some.is_retired(first)
    second = some.current(1)
    assert text(second) == f"{SECRET} 2"
    assert not some.refused(second)
    assert some.current(1) is second


def test_a_credential_that_gives_the_refused_token_again_cannot_help() -> None:
    credential = Credential()
    some = credential.tokens()
    first = some.current(1)
    credential.now += HOUR / 2
    credential.answers = [Answer(text(first), credential.wall() + HOUR / 2)]
    assert some.refused(first)
    again = some.current(1)
    credential.now += HOUR / 4
    assert not some.refused(again)


def test_a_token_is_shown_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    credential = Credential()
    some = credential.tokens()
    token = some.current(1)
    like_a_token = "abcdefghijk.lmnopqrstuv.wxyz"
    credential.answers = [RuntimeError(f"refused: {like_a_token}")]
    credential.now += HOUR
    with caplog.at_level(logging.DEBUG), pytest.raises(TokenAway) as caught:
        some.current(1)
    everything = shown(caught.value) + caplog.text + f"{token!r} {token} {[token]} {vars(some)}"
    assert SECRET not in everything
    assert like_a_token not in everything


def test_a_child_process_asks_a_credential_of_its_own() -> None:
    credential = Credential()
    some = credential.tokens()
    first = some.current(1)
    credential.waiting = []
    credential.now += HOUR - RENEW_SECONDS
    some.current(0)  # a question that the parent's thread puts
    pid = os.fork()
    if pid == 0:
        fine = False
        try:
            credential.waiting = None
            with_the_parents = some._question
            fine = some.current(5) is not first and credential.made == 2 and some._question is not with_the_parents
        finally:
            os._exit(0 if fine else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_question_is_put_in_a_thread_of_its_own() -> None:
    seen: list[int] = []

    def asking() -> Callable[[], Answer]:
        def ask() -> Answer:
            seen.append(threading.get_ident())
            return Answer(SECRET, EPOCH + HOUR)

        return ask

    some = Tokens(asking, wall=lambda: EPOCH)
    assert text(some.current(60)) == SECRET
    assert seen != [threading.get_ident()]
    assert tokens.RETIRE_SECONDS < tokens.RENEW_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("green", ["gevent.monkey.patch_all()", "eventlet.monkey_patch()"])
def test_a_token_is_renewed_beside_a_native_thread_that_never_yields(green: str) -> None:
    """As the one that holds a worker's leases, whatever the pool."""
    if importlib.util.find_spec(green.partition(".")[0]) is None:  # not imported here, where it would warn of forks
        pytest.skip("not installed")
    code = f"""
import warnings; warnings.simplefilter("ignore")
import {green.rpartition(".")[0] if "gevent" in green else "eventlet"}
{green}
import time
from celery_sqlbeat.store.tokens import Tokens
from celery_sqlbeat.unpatched import original

sleep, start = original("time", "sleep"), original("_thread", "start_new_thread")
asked, now, seen = [], [0.0], []

def ask():
    time.sleep(0.05)  # green, as the sockets of a credential are
    asked.append(1)
    return str(len(asked)), now[0] + 3600

def keeper():
    some = Tokens(lambda: ask, clock=lambda: now[0], wall=lambda: now[0])
    first = some.current(30)
    now[0] = 3400.0
    some.is_retired(first)
    for _ in range(3000):
        if len(asked) > 1:
            break
        sleep(0.01)
    seen.append(len(asked))

start(keeper, ())
while not seen:
    sleep(0.01)
print(seen[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "2", done.stdout + done.stderr
