"""A claim id serves in every way but one: nobody prints it."""

import json
import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.utils.encoding import safe_repr

from celery_sqlbeat.worker.secrecy import Unshown, hide_claim, hide_from_logs, shown

CLAIM = "5f2b3a5e0b1c4d6e8f90a1b2c3d4e5f6"


def headers() -> dict[str, Any]:
    return {"id": "r", "sqlbeat": {"v": 1, "run": "r", "claim": CLAIM, "fence": 3}}


def test_a_hidden_claim_is_sent_on_as_it_was() -> None:
    hidden = headers()
    hide_claim(hidden)
    assert hidden == headers()
    assert json.loads(json.dumps(hidden)) == headers()
    again = pickle.loads(pickle.dumps(hidden))  # to the child process of prefork
    assert again == headers() and isinstance(again["sqlbeat"]["claim"], Unshown)


@pytest.mark.parametrize("show", [repr, str, safe_repr, "{!r}".format])
def test_a_hidden_claim_is_not_shown(show: Any) -> None:
    hidden = headers()
    hide_claim(hidden)
    assert CLAIM not in show((hidden,)) and "run" in show((hidden,))


@pytest.mark.parametrize("raw", [None, 5, [], {}, {"claim": 5}])
def test_what_is_no_claim_is_left_alone(raw: Any) -> None:
    odd = {"sqlbeat": raw}
    hide_claim(odd)
    assert odd == {"sqlbeat": raw}
    nothing: dict[str, Any] = {}
    hide_claim(nothing)
    assert nothing == {}


def test_what_a_consumer_says_of_a_message_shows_no_claim(caplog: pytest.LogCaptureFixture) -> None:
    def complain(*args: Any) -> None:
        logging.getLogger("test").error("%r", [getattr(each, "headers", each) for each in args])

    names = ["on_unknown_message", "on_unknown_task", "on_invalid_task", "on_decode_error"]
    consumer = SimpleNamespace(**dict.fromkeys(names, complain))
    hide_from_logs(consumer)
    consumer.on_unknown_message({}, SimpleNamespace(headers=headers()))
    consumer.on_unknown_task({}, SimpleNamespace(headers=headers()), KeyError("x"))
    consumer.on_invalid_task({}, SimpleNamespace(headers=headers()), ValueError("x"))
    consumer.on_decode_error(SimpleNamespace(headers=headers()), ValueError("x"))
    assert len(caplog.records) == 4 and CLAIM not in caplog.text


def test_what_was_hidden_can_be_read_again() -> None:
    hidden = headers()
    hide_claim(hidden)
    assert type(hidden["sqlbeat"]["claim"]) is Unshown and type(shown(hidden["sqlbeat"])["claim"]) is str
    assert shown(hidden["sqlbeat"]) == headers()["sqlbeat"]
    assert shown(None) is None and shown({"claim": 7}) == {"claim": 7}
