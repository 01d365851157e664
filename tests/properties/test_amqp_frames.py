"""Whatever a message holds, its frames are those that py-amqp writes."""

from types import SimpleNamespace
from typing import Any

from amqp.basic_message import Message
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from amqp.spec import Basic
from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.publish.amqp import PUBLISH, frame_template, table

FRAME_MAX = 4096


names = st.text(max_size=20)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


headers = st.dictionaries(names, values, max_size=6)


def written_by_py_amqp(arguments: bytes, message: Message) -> bytes:
    written = bytearray()
    socket = SimpleNamespace(write=written.extend)
    connection = SimpleNamespace(frame_max=FRAME_MAX, bytes_sent=0)
    frame_writer(connection, socket)(1, 7, Basic.Publish, arguments, message)
    return bytes(written)


@given(headers)
def test_a_table_is_written_as_py_amqp_writes_it(values: dict[str, Any]) -> None:
    assert table(values) == dumps("F", (values,))[4:]


@given(
    st.dictionaries(st.sampled_from(["a", "b"]), values, max_size=2),
    st.dictionaries(st.sampled_from(["c", "d"]), values, max_size=2),
    st.sampled_from([b"", b"x", b"x" * (FRAME_MAX - 8), b"x" * 9000]),
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": st.text(max_size=20),
            "content_encoding": st.text(max_size=20),
            "delivery_mode": st.sampled_from([1, 2]),
            "priority": st.integers(0, 9),
            "reply_to": st.text(max_size=20),
            "expiration": st.just("1000"),
            "message_id": st.text(max_size=20),
            "app_id": st.text(max_size=20),
        },
    ),
)
def test_a_message_is_written_as_py_amqp_writes_it(
    static: dict[str, Any], own: dict[str, Any], body: bytes, properties: dict[str, Any]
) -> None:
    arguments = dumps(PUBLISH, (0, "", "queue", True, False))
    first = {**properties, "correlation_id": "first", "application_headers": {"a": 1}}
    wire = frame_template(7, FRAME_MAX, arguments, first)._replace(static=table(static))
    whole = Message(body, **{**first, "correlation_id": "own", "application_headers": {**static, **own}})
    assert wire.frames(own, "own", body) == written_by_py_amqp(arguments, whole)
