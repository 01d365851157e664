"""The flags that a worker and its pool processes share.

One place for each run, used again and again.
"""

from celery_sqlbeat.worker.task.shared_flags import SharedFlags


def test_a_mark_says_of_one_run_that_it_is_lost() -> None:
    marks = SharedFlags(2)
    one, two = marks.take(), marks.take()
    marks.set(one)
    assert marks.is_set(one) and not marks.is_set(two) and not marks.is_set(None)


def test_a_place_that_is_used_again_is_not_lost() -> None:
    marks = SharedFlags(1)
    place = marks.take()
    marks.set(place)
    marks.release(place)
    assert marks.take() == place and not marks.is_set(place)


def test_a_mark_says_of_one_run_that_its_task_succeeded() -> None:
    marks = SharedFlags(2)
    one, two = marks.take(), marks.take()
    marks.succeed(one)
    assert marks.has_succeeded(one) and not marks.has_succeeded(two) and not marks.has_succeeded(None)
    assert not marks.is_set(one)
    marks.release(one)
    marks.release(two)
    assert marks.take() == one and not marks.has_succeeded(one)


def test_a_mark_says_of_one_run_when_the_retry_is_due_that_it_has_sent() -> None:
    marks = SharedFlags(2)
    one, two = marks.take(), marks.take()
    marks.retry(one, 17.5)
    marks.retry(None, 18.5)
    assert marks.retries_at(one) == 17.5 and marks.retries_at(two) is None and marks.retries_at(None) is None
    marks.release(one)
    marks.release(two)
    assert marks.take() == one and marks.retries_at(one) is None


def test_a_body_begins_until_the_time_of_its_lease_and_while_it_is_not_lost() -> None:
    marks = SharedFlags(2)
    one, two = marks.take(), marks.take()
    assert not marks.begin(one, 0.0)
    marks.extend(one, 5.0)
    marks.extend(two, 5.0)
    assert marks.begin(one, 4.9) and not marks.begin(one, 5.0)
    marks.set(one)
    assert not marks.begin(one, 4.9) and marks.begin(two, 4.9)
    marks.release(two)
    assert marks.take() == two and not marks.begin(two, 4.9)


def test_a_lease_is_safe_for_a_body_that_was_forbidden_too_late() -> None:
    marks = SharedFlags(1)
    one = marks.take()
    marks.extend(one, 5.0)
    assert marks.begin(one, 0.0) and not marks.forbid(one)
    assert marks.is_safe(one, 4.9) and not marks.is_safe(one, 5.0)
    marks.set(one)
    assert not marks.is_safe(one, 4.9)


def test_a_body_that_was_forbidden_does_not_begin_and_one_that_has_begun_cannot_be_forbidden() -> None:
    marks = SharedFlags(2)
    one, two = marks.take(), marks.take()
    marks.extend(one, 5.0)
    marks.extend(two, 5.0)
    assert marks.forbid(one) and not marks.begin(one, 0.0)
    assert marks.begin(two, 0.0) and not marks.forbid(two)
    assert not marks.is_set(one) and not marks.is_set(two)
    marks.release(one)
    assert marks.take() == one
    marks.extend(one, 5.0)
    assert marks.begin(one, 0.0)


def test_a_run_beyond_the_last_place_has_no_mark() -> None:
    marks = SharedFlags(1)
    marks.take()
    assert marks.take() is None
    marks.set(None)
    marks.extend(None, 1.0)
    marks.release(None)
    assert marks.begin(None, 2.0) and marks.is_safe(None, 2.0) and not marks.forbid(None)


def test_a_place_out_of_a_message_is_not_trusted() -> None:
    assert not SharedFlags(1).is_set(-1) and not SharedFlags(1).is_set(10**9)
