"""Who listens gets every event; one that fails harms nobody; the log is written from the events."""

import logging
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from celery_sqlbeat import events
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.events import Event, recorded, subscribe

SLOT = datetime(2026, 11, 19, 9, 0, tzinfo=timezone.utc)


class Broken(Exception):
    pass


def broken(_event: Any) -> None:
    raise Broken


def lost(run_id: str = "r1", job_name: str = "nightly") -> None:
    events.lease_lost(job_name=job_name, run_id=run_id, reason="taken over")


def lost_one(run_id: str) -> Event:
    return Event("lease_lost", {"job_name": "nightly", "run_id": run_id, "reason": "taken over"})


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, "celery_sqlbeat"):
        yield caplog


def test_a_subscriber_gets_each_event_until_it_ends() -> None:
    first: list[Any] = []
    second: list[Any] = []
    end_first, end_second = subscribe(first.append), subscribe(second.append)
    lost("r1")
    end_first()
    end_first()  # again: nothing happens
    lost("r2")
    end_second()
    lost("r3")
    assert first == [lost_one("r1")]
    assert second == [lost_one("r1"), lost_one("r2")]


def test_a_subscriber_that_ends_itself_or_another_one_disturbs_no_event() -> None:
    seen: list[str] = []

    def once(_event: Any) -> None:
        seen.append("once")
        end_once()
        end_later()

    end_once = subscribe(once)
    end_later = subscribe(lambda _event: seen.append("later"))
    lost()
    lost()
    assert seen == ["once", "later"]


def test_a_subscriber_that_raises_stops_nobody_and_is_logged_once_per_kind(log: pytest.LogCaptureFixture) -> None:
    def also_broken(_event: Any) -> None:
        raise Broken

    ends = [subscribe(broken), subscribe(also_broken)]
    with recorded() as seen:
        for _ in range(3):
            lost()
            events.database_available(tries=1)
    for end in ends:
        end()
    assert len(seen) == 6
    said = [record for record in log.records if record.name == "celery_sqlbeat.events"]
    assert len(said) == 4 and all(record.exc_info and record.exc_info[0] is Broken for record in said)
    assert [text.rpartition("event=")[2] for text in map(logging.LogRecord.getMessage, said)] == [
        "lease_lost",
        "lease_lost",
        "database_available",
        "database_available",
    ]


def test_a_subscriber_that_subscribes_anew_is_logged_anew(log: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        end = subscribe(broken)
        lost()
        end()
    assert [record.name for record in log.records].count("celery_sqlbeat.events") == 2


def test_what_ends_a_process_passes_a_subscriber() -> None:
    """As where a signal handler of Celery's raises it in the midst of one."""

    def leave(_event: Any) -> None:
        raise SystemExit(3)

    end = subscribe(leave)
    try:
        with pytest.raises(SystemExit):
            lost()
    finally:
        end()


def test_a_subscriber_runs_in_the_thread_that_emits() -> None:
    threads: list[int] = []
    end = subscribe(lambda _event: threads.append(threading.get_ident()))
    thread = threading.Thread(target=lost)
    thread.start()
    thread.join()
    end()
    assert threads == [thread.ident]


def test_an_event_is_not_made_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "celery_sqlbeat"):
        events.leases_extended()  # type: ignore[call-arg] # it would be an error, were it made
        with recorded(), pytest.raises(TypeError):
            events.leases_extended()  # type: ignore[call-arg]


def test_a_line_has_the_sentence_and_the_fields(log: pytest.LogCaptureFixture) -> None:
    events.slot_skipped(job_name="my job", reason="overlap", slots=3, first=SLOT, last=SLOT)
    (record,) = log.records
    assert record.getMessage() == (
        'slots were skipped: job_name="my job" reason=overlap slots=3 '
        "first=2026-11-19T09:00:00+00:00 last=2026-11-19T09:00:00+00:00"
    )
    assert record.levelno == logging.INFO and record.exc_info is None
    found = vars(record)
    assert (found["event"], found["job_name"], found["slots"], found["first"]) == ("slot_skipped", "my job", 3, SLOT)


def test_a_field_that_is_none_is_in_the_event_and_not_in_the_line(log: pytest.LogCaptureFixture) -> None:
    with recorded() as seen:
        events.worker_unleased(queue=None)
    assert seen == [Event("worker_unleased", {"queue": None})]
    assert log.records[0].getMessage() == events.KINDS["worker_unleased"].sentence


def test_lines_of_a_kind_have_one_message_for_tools_that_group_by_it(log: pytest.LogCaptureFixture) -> None:
    lost("r1")
    lost("r2")
    assert len({record.msg for record in log.records}) == 1


def test_a_line_without_fields_is_the_sentence(log: pytest.LogCaptureFixture) -> None:
    events.worker_ready()
    assert [record.getMessage() for record in log.records] == ["this worker keeps leases from now on"]


def test_the_logger_is_that_of_the_package(log: pytest.LogCaptureFixture) -> None:
    lost()
    assert [record.name for record in log.records] == ["celery_sqlbeat"]


def test_a_record_says_where_the_event_was_told(log: pytest.LogCaptureFixture) -> None:
    lost()
    assert (log.records[0].filename, log.records[0].funcName) == ("test_emitting.py", "lost")


def test_a_name_forges_no_line(log: pytest.LogCaptureFixture) -> None:
    lost(job_name="x\nCRITICAL \x1b[2J\u2028forged run_id=7")
    (record,) = log.records
    assert record.getMessage() == (
        "a run lost its lease and its task is stopped: "
        'job_name="x\\nCRITICAL \\x1b[2J\\u2028forged run_id=7" run_id=r1 reason="taken over"'
    )
    assert vars(record)["job_name"].isprintable()


def test_several_names_and_errors_are_text_of_one_line(log: pytest.LogCaptureFixture) -> None:
    events.runs_dispatched(runs=2, job_names=("a", "b\n"))
    events.runs_dispatched(runs=12, job_names=[f"j{number}" for number in range(12)])
    events.step_failed(step="x", error=Broken("first line\n  second"))
    events.step_failed(step="x", error=Broken())
    assert [record.getMessage().partition(": ")[2] for record in log.records] == [
        r'runs=2 job_names="a, b\n"',
        'runs=12 job_names="j0, j1, j2, j3, j4, j5, j6, j7, j8, j9, and 2 more"',
        'step=x error="first line second"',
        "step=x error=Broken",
    ]


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(Broken("x"), True), (StoreError("x"), False), ("only text", False)]
)
def test_only_an_error_that_nobody_foresaw_has_its_traceback(
    log: pytest.LogCaptureFixture, error: Exception | str, has_traceback: bool
) -> None:
    events.duty_failed(duty="fire", error=error, retry_seconds=0.25)
    assert (log.records[0].exc_info is not None) is has_traceback
    assert "retry_seconds=0.25" in log.records[0].getMessage()


def test_a_kind_for_foreseen_errors_has_no_traceback(log: pytest.LogCaptureFixture) -> None:
    events.step_failed(step="x", error=Broken("x"))
    assert log.records[0].exc_info is None


def test_a_log_that_fails_stops_nobody(log: pytest.LogCaptureFixture) -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise Broken

    with recorded() as seen:
        for _ in range(2):
            events.step_failed(step="x", error=Unshowable())
    assert len(seen) == 2
    assert [record.name for record in log.records] == ["celery_sqlbeat.events"]
