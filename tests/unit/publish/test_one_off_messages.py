"""A one-off has no job: its message names none, and no monitor is opened for it."""

from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.model import Claim, Slot
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.publish.publisher import Publisher

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


def claim(kind: str, number: int = 1) -> Claim:
    """Return the claim of a slot of some kind."""
    slot = Slot(kind, NOON, 2, 1, 0, None, None, True, None, False)
    run_id = f"01a00000-0000-7000-8000-00000000000{number}"
    return Claim(run_id, run_id, "shop.add", (), {}, {}, run_id, "claim", 3, slot, 120.0, 3, True, None)


class Scheduler:
    """One whose entries a tool watches, as Sentry's SDK does."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Note the entry, and send nothing."""
        self.entries.append(entry)


class Entry:
    """What the scheduler makes of a claim."""

    options: dict[str, Any]


@pytest.mark.parametrize(("kind", "watched"), [("schedule", 1), (ONE_OFF, 0)])
def test_a_tool_that_watches_entries_sees_no_one_off(kind: str, watched: int) -> None:
    app = Celery("shop", broker=f"memory://watched-{kind}", set_as_current=False)
    scheduler = Scheduler()
    publisher = Publisher(app, scheduler.apply_entry, lambda _: Entry())
    publisher.connect(5)
    published = publisher.publish([claim(kind)], float("inf"))
    publisher.close()
    assert len(scheduler.entries) == watched
    assert len(published.confirmed) == 1 - watched


def test_messages_of_one_kind_say_which_of_them_has_a_job() -> None:
    app = Celery("shop", broker="memory://kinds", set_as_current=False)
    app.conf.task_default_queue = "kinds"
    publisher = Publisher(app)
    publisher.connect(5)
    claims = [claim("schedule", 1), claim(ONE_OFF, 2), claim("schedule", 3)]  # the later two are of a template
    assert len(publisher.publish(claims, float("inf")).confirmed) == 3
    publisher.close()
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("kinds")
        headers = [queue.get_nowait().headers for _ in claims]
        queue.close()
    assert [each.get("periodic_task_name") for each in headers] == [claims[0].run_id, None, claims[2].run_id]
    assert headers[1]["argsrepr"] == "()  # one-off, attempt 2"
