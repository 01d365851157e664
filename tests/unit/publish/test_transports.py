"""What kombu asks of the Redis client of a transport, and the text of its messages."""

import json
from typing import Any

import pytest
import redis

from celery_sqlbeat.publish.transports import _PipelinedClient, _text_template


class Client:
    """Stands in for a client of Redis."""

    def pipeline(self, **_: Any) -> "Client":
        return Client()


def test_only_writes_to_queues_are_held_back_from_redis() -> None:
    transport: Any = None
    client = _PipelinedClient(transport, Client())
    own = {name for name in (*vars(client), *vars(_PipelinedClient)) if not name.startswith("_")}
    assert own & set(dir(redis.Redis)) == {"lpush", "publish"}


class Pipeline:
    """Stands in for a pipeline: keeps the commands, and answers each one with its number."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []

    def lpush(self, *command: Any) -> None:
        self.commands.append(command)

    publish = lpush


class Redis:
    """Stands in for a client of Redis with one pipeline."""

    def __init__(self) -> None:
        self.made = Pipeline()

    def pipeline(self, **_: Any) -> Pipeline:
        return self.made


class Transport:
    """Stands in for a transport: says whose message is being written."""

    run_id = ""


def test_what_goes_to_one_queue_is_one_command_that_answers_for_all_its_runs() -> None:
    transport: Any = Transport()
    client = _PipelinedClient(transport, Redis())
    for transport.run_id, queue in (("a", "fast"), ("b", "slow"), ("c", "fast")):
        client.lpush(queue, f"message of {transport.run_id}")
    client.publish("topic", "message of c")
    pipeline, owners = client.take()
    assert pipeline.commands == [
        ("topic", "message of c"),
        ("fast", "message of a", "message of c"),
        ("slow", "message of b"),
    ]
    assert owners == [["c"], ["a", "c"], ["b"]]


MESSAGE: dict[str, Any] = {
    "body": "W10=",
    "content-encoding": "utf-8",
    "content-type": "application/json",
    "headers": {"task": "shop.report", "id": "run-1"},
    "properties": {"correlation_id": "run-1", "delivery_tag": "one", "body_encoding": "base64", "priority": 0},
}
CONTENT = {"content-encoding": "utf-8", "content-type": "application/json"}


def test_a_message_from_the_text_of_another_differs_only_in_headers_id_tag_and_body() -> None:
    template = _text_template("queue", json.dumps(MESSAGE), "run-1", CONTENT, {"task": "shop.report"})
    assert template is not None and template.key == "queue"
    made = json.loads(template.text({"id": 'run-"2'}, 'run-"2', b"[1]"))
    assert made["properties"].pop("delivery_tag") not in ("", "one")
    properties = {"correlation_id": 'run-"2', "body_encoding": "base64", "priority": 0}
    headers = {"task": "shop.report", "id": 'run-"2'}
    assert made == {**MESSAGE, "body": "WzFd", "headers": headers, "properties": properties}


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"properties": {**MESSAGE["properties"], "correlation_id": "run-0"}},
        {"properties": {**MESSAGE["properties"], "body_encoding": None}},
        {"properties": {"correlation_id": "run-1", "body_encoding": "base64"}},
    ],
)
def test_no_template_is_made_of_a_text_that_is_not_as_expected(change: dict[str, Any]) -> None:
    assert _text_template("queue", json.dumps(MESSAGE | change), "run-1", CONTENT, {}) is None
