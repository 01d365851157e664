"""A header that was sent on with a message of somebody else's."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sqlbeat.celery_bridge import message_header
from celery_sqlbeat.celery_bridge.message_header import HEADER, header_of
from tests.support.headers import RAW, REQUEST


def request(task: str = "shop.add", **headers: Any) -> Any:
    mine = {**REQUEST, HEADER: RAW, **headers}
    properties = {"application_headers": dict(mine), "reply_to": "me"}
    return SimpleNamespace(name=task, message=None, request_dict={**mine, "properties": properties})


def test_a_message_with_its_own_header_is_ours_even_where_that_is_damaged() -> None:
    for raw in (RAW, {**RAW, "fence": "7"}, "forged"):
        assert header_of(request(sqlbeat=raw))
    assert HEADER in request().request_dict


@pytest.mark.parametrize("headers", [{"sqlbeat": None}], ids=repr)
def test_a_message_without_one_is_not(headers: dict[str, Any]) -> None:
    assert header_of(request(**headers)) is None
    assert header_of(SimpleNamespace(name="shop.add", message=None, request_dict={})) is None


def test_a_header_of_another_message_goes_no_further_and_is_spoken_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(message_header, "_told", set())
    with caplog.at_level(logging.WARNING):
        for name in ("shop.add", "shop.add", "shop.more"):
            req = request(name, id="another")
            own = req.request_dict["properties"]
            assert not header_of(req)
            assert HEADER not in req.request_dict
            assert req.request_dict["properties"] == {
                "application_headers": {**REQUEST, "id": "another"},
                "reply_to": "me",
            }
            assert HEADER in own["application_headers"]  # the message's own, which may go back to the broker
    assert [name for name in ("shop.add", "shop.more") if caplog.text.count(f"task {name} ") != 1] == []
