"""What a beat asks its database while nothing is due, minute by minute."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.beat.build import build_beat
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.environment import Ids, Machine
from tests.support.world import NOON, World

MINUTES = 40
CHANGE = 630.0  # seconds after the start, when somebody changes something


class _Publisher:
    """A broker that nobody needs: nothing is due."""

    is_watched = False
    queue_of = staticmethod(lambda claim: None)

    def identify(self, store_id: str, namespace: str) -> None:
        """Nothing is sent."""


@pytest.mark.parametrize(("notice", "most"), [(5.0, 15), (0.0, 8)])
def test_an_idle_beat_sends_few_statements_in_each_minute(
    world: World, monkeypatch: pytest.MonkeyPatch, notice: float, most: int
) -> None:
    time = 0.0
    machine = Machine(lambda: time, lambda: NOON + timedelta(seconds=time), lambda: 0.5, Ids())
    app = Celery("shop", broker="memory://", set_as_current=False)
    settings = read_settings({"sqlbeat_namespace": world.namespace, "sqlbeat_notice_interval": notice}, {})
    publisher: Any = _Publisher()
    parts = build_beat(app, settings, world.store, publisher, {}, {}, machine=machine)
    opened = world.store.database.dialect.connect()
    opened.close()
    session, sent = type(opened), list[tuple[float, str]]()
    fetch = session.fetch

    def counted(self: Any, name: str, *args: Any, **scalars: Any) -> Any:
        sent.append((time, name))
        return fetch(self, name, *args, **scalars)

    duties: list[Callable[[], float]] = [parts.tick, *parts.background]
    due = [duty() for duty in duties]  # the end of the start
    is_changed = False
    monkeypatch.setattr(session, "fetch", counted)
    while (time := min(due)) < 60 * MINUTES:
        world.at(NOON + timedelta(seconds=time))
        if time > CHANGE and not is_changed:
            # After that, too, all duties keep to their polls.
            world.store.database.fetch("bump_changes", namespace=world.namespace)
            due, is_changed = [time] * len(duties), True
        for number, duty in enumerate(duties):
            if due[number] <= time:
                due[number] = time + max(0.001, duty())
    # Counted from the middle of one poll to that of the next, where no duty is due.
    minutes = Counter(int((at + 30) // 60) for at, _ in sent if not 0 <= at - CHANGE < 60)
    busiest, count = minutes.most_common(1)[0]
    assert count <= most, [name for at, name in sent if int((at + 30) // 60) == busiest]
