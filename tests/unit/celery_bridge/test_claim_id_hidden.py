"""A claim id serves in every way but one: nobody prints it."""

import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.utils.encoding import safe_repr

from celery_sqlbeat.celery_bridge.message_header import Unshown, hide_claim, hide_from_all, hide_in, shown

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


def message() -> Any:
    own = headers()
    return SimpleNamespace(headers=own, properties={"application_headers": own, "reply_to": "me"})


def test_whoever_is_handed_a_message_by_a_consumer_can_show_no_claim() -> None:
    seen: list[str] = []
    consumer = SimpleNamespace(
        create_task_handler=lambda: lambda message: seen.append(repr(vars(message))),
        on_decode_error=lambda message, error: seen.append(repr(vars(message))),
    )
    hide_from_all(consumer)
    consumer.create_task_handler()(message())
    consumer.on_decode_error(message(), ValueError("x"))
    assert len(seen) == 2 and all("reply_to" in text and CLAIM not in text for text in seen)


def test_a_message_that_goes_back_to_the_broker_has_its_own_headers() -> None:
    one = message()
    own = one.headers
    hide_in(one)
    assert type(own["sqlbeat"]["claim"]) is str and one.headers == own
    assert one.properties["application_headers"] is one.headers and one.properties["reply_to"] == "me"


@pytest.mark.parametrize("given", [None, {}, {"id": "r"}])
def test_a_message_of_others_is_left_alone(given: Any) -> None:
    properties: dict[str, Any] = {"application_headers": given}
    one = SimpleNamespace(headers=given, properties=properties)
    hide_in(one)
    assert one.headers is given and one.properties is properties


def test_what_was_hidden_can_be_read_again() -> None:
    hidden = headers()
    hide_claim(hidden)
    assert type(hidden["sqlbeat"]["claim"]) is Unshown and type(shown(hidden["sqlbeat"])["claim"]) is str
    assert shown(hidden["sqlbeat"]) == headers()["sqlbeat"]
    assert shown(None) is None and shown({"claim": 7}) == {"claim": 7}
