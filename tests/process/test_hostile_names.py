"""Whoever writes a row, or sends a message, writes no line of a log.

Names end none, and no terminal obeys them.
"""

import pytest

from celery_sqlbeat.events import shown
from celery_sqlbeat.model.lifecycle import SUCCESS
from tests.process.conftest import MakeWorkers
from tests.process.workers import PATIENCE, Lane
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

_LINE = "[2026-01-01 00:00:00,000: CRITICAL/MainProcess] celery_sqlbeat: forged"
_MEANS = {
    "line feed": "\n",
    "carriage return": "\r",
    "line separator": "\u2028",
    "escape sequence": "\x1b[2J",
    "control sequence of C1": "\x9b2J",
    "override of direction": "\u202e",
}
_HOSTILE = "x" + _LINE.join(_MEANS.values())


def assert_one_line(log: str) -> None:
    """No line begins as a forged one does, and nothing that a terminal obeys is there."""
    assert not [line for line in log.splitlines() if line.startswith(_LINE)], log
    assert [name for name, means in _MEANS.items() if means != "\n" and means in log] == [], log


def test_a_hostile_name_forges_no_line_of_a_beat_or_a_worker(make_workers: MakeWorkers) -> None:
    shop = make_workers(Lane("threads", "redis", "sqlite", "late"))
    worker = shop.work("threads", "--loglevel", "DEBUG").ready()
    unknown = shop.order(f"work.{_HOSTILE}", name="unknown")
    shop.publish(shop.claim()[unknown])  # as a beat that does not know what the worker knows
    worker.says("it is not registered in this worker")
    shop.order("work.note", name=_HOSTILE)
    shop.order("work.note", name=f"wrong{_HOSTILE}", schedule=f"every {_HOSTILE}")
    shop.order(f"work.{_HOSTILE}", name=f"withheld{_HOSTILE}")
    beat = shop.start("beat", "--loglevel", "DEBUG")
    shop.wait_for_states(_HOSTILE, SUCCESS)
    wait_for(lambda: "until its row is corrected" in beat.log, PATIENCE, shop.logs)
    wait_for(lambda: "not every worker of a queue knows a task" in beat.log, PATIENCE, shop.logs)
    worker.says("a worker wrote the outcome of a run")
    beat.stop()
    worker.stop()
    for process in (beat, worker):
        assert_one_line(process.log)
        assert shown(_HOSTILE) in process.log, "escaped, so that somebody can look for it"
