"""A token is asked for in time, off the way of whoever connects, and shown to nobody."""

import logging
import threading
from collections.abc import Callable

import pytest

from celery_sqlbeat.store.sql.dialects import mssql_tokens
from celery_sqlbeat.store.sql.dialects.mssql_tokens import (
    RENEW_SECONDS,
    RETIRE_SECONDS,
    RETRY_SECONDS,
    Tokens,
    TokenUnavailable,
)
from tests.support.credentials import EPOCH, HOUR, SECRET, Answer, Credential, shown, text


def test_the_first_token_is_waited_for_and_the_next_users_share_it() -> None:
    credential = Credential()
    some = credential.tokens()
    assert some.current(1) is some.current(1)
    assert (credential.made, credential.asked) == (1, 1)


def test_nobody_waits_longer_than_his_patience_and_the_answer_is_there_the_next_time() -> None:
    credential = Credential()
    credential.waiting = []
    some = credential.tokens()
    with pytest.raises(TokenUnavailable, match=r"no token within 0\.01 s"):
        some.current(0.01)
    with pytest.raises(TokenUnavailable):
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
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(TokenUnavailable, match="RuntimeError: no managed identity endpoint"),
    ):
        some.current(1)
    assert "no managed identity endpoint" in caplog.text
    with pytest.raises(TokenUnavailable, match="no managed identity"):
        some.current(1)
    assert credential.asked == 1
    credential.now += RETRY_SECONDS
    with pytest.raises(TokenUnavailable, match="again"):
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
    with pytest.raises(TokenUnavailable, match="away"):
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
    with caplog.at_level(logging.DEBUG), pytest.raises(TokenUnavailable) as caught:
        some.current(1)
    everything = shown(caught.value) + caplog.text + f"{token!r} {token} {[token]} {vars(some)}"
    assert SECRET not in everything
    assert like_a_token not in everything


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
    assert mssql_tokens.RETIRE_SECONDS < mssql_tokens.RENEW_SECONDS
