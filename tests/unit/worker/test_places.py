"""The small things under a worker: marks, loops, native threads."""

import threading
import time
from functools import partial

from celery_sqlbeat.worker.loops import PipedLoop, PlainLoop
from celery_sqlbeat.worker.marks import Marks
from celery_sqlbeat.worker.native import Later


def test_a_mark_says_of_one_run_that_it_is_lost() -> None:
    marks = Marks(2)
    one, two = marks.take(), marks.take()
    marks.set(one)
    assert marks.is_set(one) and not marks.is_set(two) and not marks.is_set(None)


def test_a_place_that_is_used_again_is_not_lost() -> None:
    marks = Marks(1)
    place = marks.take()
    marks.set(place)
    marks.give_back(place)
    assert marks.take() == place and not marks.is_set(place)


def test_a_mark_says_of_one_run_that_its_task_succeeded() -> None:
    marks = Marks(2)
    one, two = marks.take(), marks.take()
    marks.succeed(one)
    assert marks.has_succeeded(one) and not marks.has_succeeded(two) and not marks.has_succeeded(None)
    assert not marks.is_set(one)
    marks.give_back(one)
    marks.give_back(two)
    assert marks.take() == one and not marks.has_succeeded(one)


def test_a_lease_is_safe_until_its_time_and_while_it_is_not_lost() -> None:
    marks = Marks(2)
    one, two = marks.take(), marks.take()
    assert not marks.is_safe(one, 0.0)
    marks.extend(one, 5.0)
    marks.extend(two, 5.0)
    assert marks.is_safe(one, 4.9) and not marks.is_safe(one, 5.0)
    marks.set(one)
    assert not marks.is_safe(one, 4.9) and marks.is_safe(two, 4.9)
    marks.give_back(two)
    assert marks.take() == two and not marks.is_safe(two, 4.9)


def test_a_run_beyond_the_last_place_has_no_mark() -> None:
    marks = Marks(1)
    marks.take()
    assert marks.take() is None
    marks.set(None)
    marks.extend(None, 1.0)
    marks.give_back(None)
    assert marks.is_safe(None, 2.0)


def test_a_place_out_of_a_message_is_not_trusted() -> None:
    assert not Marks(1).is_set(-1) and not Marks(1).is_set(10**9)


class Hub:
    def add_reader(self, fd: int, callback: object) -> None:
        self.fd, self.callback = fd, callback


def test_what_another_thread_posts_wakes_the_loop_once() -> None:
    import select

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


def test_things_are_called_later_in_their_order() -> None:
    later, done, over = Later(), [], threading.Event()
    began = time.monotonic()
    later.after(0.2, over.set)
    later.after(0.1, lambda: done.append("b"))
    later.after(0.0, lambda: done.append("a"))
    assert over.wait(10) and time.monotonic() - began >= 0.2
    assert done == ["a", "b"]
