"""Frames written once and filled in often are the frames that py-amqp writes."""

import pytest
from amqp.serialization import dumps

from celery_sqlbeat.publish.amqp import PUBLISH, frame_template

FRAME_MAX = 4096


def test_headers_too_large_for_a_frame_are_refused() -> None:
    first = {"correlation_id": "first", "application_headers": {}}
    wire = frame_template(7, FRAME_MAX, dumps(PUBLISH, (0, "", "queue", True, False)), first)
    with pytest.raises(ValueError, match="headers"):
        wire.frames({"a": "x" * FRAME_MAX}, "own", b"")
