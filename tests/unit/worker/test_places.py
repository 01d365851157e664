"""The small things under a worker: marks, loops, native threads."""

import select
import subprocess
import sys
import threading
import time
from functools import partial

from celery_sqlbeat.worker.loops import PipedLoop, PlainLoop
from celery_sqlbeat.worker.marks import Marks
from celery_sqlbeat.worker.native import Later


def test_all_workers_of_a_process_have_the_same_marks_and_those_of_a_child_their_own() -> None:
    subprocess.run([sys.executable, "-c", FORKS], check=True)


FORKS = """
import os
from celery_sqlbeat.worker import running

marks = running.share()
assert running.share() is marks
child = os.fork()
if not child:
    os._exit(running.share() is marks)
assert os.waitpid(child, 0)[1] == 0
assert running.share() is marks
"""


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


def test_a_mark_says_of_one_run_when_the_retry_is_due_that_it_has_sent() -> None:
    marks = Marks(2)
    one, two = marks.take(), marks.take()
    marks.retry(one, 17.5)
    marks.retry(None, 18.5)
    assert marks.retries_at(one) == 17.5 and marks.retries_at(two) is None and marks.retries_at(None) is None
    marks.give_back(one)
    marks.give_back(two)
    assert marks.take() == one and marks.retries_at(one) is None


def test_a_body_begins_until_the_time_of_its_lease_and_while_it_is_not_lost() -> None:
    marks = Marks(2)
    one, two = marks.take(), marks.take()
    assert not marks.begin(one, 0.0)
    marks.extend(one, 5.0)
    marks.extend(two, 5.0)
    assert marks.begin(one, 4.9) and not marks.begin(one, 5.0)
    marks.set(one)
    assert not marks.begin(one, 4.9) and marks.begin(two, 4.9)
    marks.give_back(two)
    assert marks.take() == two and not marks.begin(two, 4.9)


def test_a_body_that_was_forbidden_does_not_begin_and_one_that_has_begun_cannot_be_forbidden() -> None:
    marks = Marks(2)
    one, two = marks.take(), marks.take()
    marks.extend(one, 5.0)
    marks.extend(two, 5.0)
    assert marks.forbid(one) and not marks.begin(one, 0.0)
    assert marks.begin(two, 0.0) and not marks.forbid(two)
    assert not marks.is_set(one) and not marks.is_set(two)
    marks.give_back(one)
    assert marks.take() == one
    marks.extend(one, 5.0)
    assert marks.begin(one, 0.0)


def test_a_run_beyond_the_last_place_has_no_mark() -> None:
    marks = Marks(1)
    marks.take()
    assert marks.take() is None
    marks.set(None)
    marks.extend(None, 1.0)
    marks.give_back(None)
    assert marks.begin(None, 2.0) and not marks.forbid(None)


def test_a_place_out_of_a_message_is_not_trusted() -> None:
    assert not Marks(1).is_set(-1) and not Marks(1).is_set(10**9)


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


def test_what_is_posted_while_the_loop_is_quiet_is_done_right_after_it_without_a_ring() -> None:
    loop, hub = PipedLoop(), Hub()
    done: list[str] = []
    loop.join(hub)
    hub.callback()  # type: ignore[operator]
    with loop.quiet():
        loop.post(lambda: done.append("posted"))
        assert done == []
    assert done == ["posted"]
    assert not select.select([hub.fd], [], [], 0)[0]
    loop.post(lambda: None)
    assert select.select([hub.fd], [], [], 5)[0]
    loop.close()


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
