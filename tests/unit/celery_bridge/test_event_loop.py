"""What other threads post to a loop.

Done there in order, woken once, and no action in the way of another.
"""

import select
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sqlbeat.celery_bridge.event_loop import PipedLoop, PlainLoop, acknowledge_at_the_end


class Hub:
    def add_reader(self, fd: int, callback: object) -> None:
        self.fd, self.callback = fd, callback


def test_what_another_thread_posts_wakes_the_loop_once() -> None:
    loop, hub = PipedLoop(), Hub()
    done: list[int] = []
    loop.join(hub)

    def post() -> None:
        for number in range(100):
            loop.post(partial(done.append, number))

    thread = threading.Thread(target=post)
    thread.start()
    thread.join()
    assert select.select([hub.fd], [], [], 5)[0]
    hub.callback()  # type: ignore[operator]
    assert done == list(range(100))
    assert not select.select([hub.fd], [], [], 0)[0]
    loop.post(lambda: done.append(-1))
    assert select.select([hub.fd], [], [], 5)[0]
    loop.close()
    loop.post(lambda: None)  # nobody hears it, and nothing fails


def test_an_action_that_fails_stops_no_other() -> None:
    posted: list[object] = []
    loop = PlainLoop(posted.append)
    done: list[int] = []
    loop.post(lambda: 1 // 0)  # type: ignore[arg-type]
    loop.post(lambda: done.append(1))
    loop.run()
    assert done == [1] and len(posted) == 2


@pytest.mark.parametrize(("hub", "done"), [(None, ["acknowledged"]), ("a hub", [])])
def test_a_consumer_without_an_event_loop_acknowledges_at_its_end(hub: Any, done: list[str]) -> None:
    heard: list[str] = []
    consumer = SimpleNamespace(hub=hub, perform_pending_operations=lambda: heard.append("acknowledged"))
    acknowledge_at_the_end(consumer)
    acknowledge_at_the_end(None)
    assert heard == done
