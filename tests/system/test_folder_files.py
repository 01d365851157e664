"""The folder that stands in for a broker.

What each step leaves behind, and what a kill between two steps costs.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.brokers import files
from tests.support.folder import Exchange, Spool

ROOT = Path(__file__).parents[2]
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "broker")
    made.declare()
    yield made
    made.close()


@pytest.fixture
def other(spool: Spool) -> Iterator[Start]:
    """Another process that has the same folder, does something, says so and stays."""
    processes: list[subprocess.Popen[str]] = []

    def start(does: str) -> "subprocess.Popen[str]":
        code = (
            "import os, pathlib, time\nfrom tests.support.folder import Exchange, Spool\n"
            f"spool = Spool(pathlib.Path({str(spool.root)!r}))\n{does}\nprint('done', flush=True)\ntime.sleep(60)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()  # the process alone, not its group
    process.wait()


def held_and_waiting(spool: Spool) -> list[str]:
    return [path.name for path in spool.root.rglob("*.json") if "exchanges" not in path.parts]


def bindings(spool: Spool, exchange: str) -> list[str]:
    return [queue for _, _, queue in spool.channel.get_table(exchange)]


def test_messages_come_out_in_the_order_in_which_they_went_in(spool: Spool) -> None:
    for number in range(200):
        spool.put(number)
    assert [spool.body() for _ in range(200)] == list(range(200))
    assert spool.take() is None


def test_a_higher_priority_comes_first(spool: Spool) -> None:
    for priority in (0, 9, 5):
        spool.put(priority, priority=priority)
    assert [spool.body() for _ in range(3)] == [9, 5, 0]


def test_an_acknowledged_message_leaves_no_file(spool: Spool) -> None:
    spool.put(1)
    spool.take().ack()
    assert held_and_waiting(spool) == []


def test_a_message_given_back_comes_again_at_its_old_place_and_says_so(spool: Spool) -> None:
    spool.put(1)
    spool.put(2)
    first = spool.take()
    assert not first.delivery_info.get("redelivered")
    first.requeue()
    reader = Spool(spool.root)
    again = reader.take()
    assert again.payload == 1 and again.delivery_info["redelivered"]
    reader.close()


def test_a_message_that_is_being_written_is_seen_by_nobody(spool: Spool) -> None:
    half = files.own_folder(spool.root) / "0-half.json"
    half.write_text('{"n":')
    assert spool.take() is None
    assert spool.size() == 0


def test_a_file_without_its_content_is_set_aside_and_stops_nobody(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    (spool.root / "queues" / "celery" / "0-torn.json").write_text("")
    spool.put(2)
    assert spool.body() == 2
    assert (spool.root / "broken" / "0-torn.json").exists()
    assert "was set aside" in caplog.text


def test_what_a_living_process_holds_stays_with_it(spool: Spool, other: Start) -> None:
    spool.put(1)
    other("assert spool.body() == 1")
    spool.channel.restore()
    assert spool.take() is None


def test_what_a_killed_process_held_comes_back(spool: Spool, other: Start) -> None:
    spool.put(1)
    kill(other("assert spool.body() == 1"))
    spool.channel.restore()
    found = spool.take()
    assert found.payload == 1 and found.delivery_info["redelivered"]
    assert list((spool.root / "owners").iterdir()) == [files.own_folder(spool.root)], "the dead one's folder is gone"


def test_a_child_that_outlives_its_killed_parent_keeps_no_message_from_others(spool: Spool, other: Start) -> None:
    spool.put(1)
    kill(other("assert spool.body() == 1\nif os.fork() == 0: time.sleep(60)"))
    spool.channel.restore()
    assert spool.body() == 1


def test_looking_for_the_dead_does_not_end_ones_own_life(spool: Spool, other: Start) -> None:
    spool.put(1)
    assert spool.take() is not None
    spool.channel.restore()
    other("spool.channel.restore(); assert spool.take() is None")


def test_a_process_that_died_while_it_made_its_folder_is_cleared_away(spool: Spool) -> None:
    unlocked, without = spool.root / "owners" / "1-unlocked", spool.root / "owners" / "1-without"
    unlocked.mkdir(parents=True)
    (unlocked / "lock").touch()
    without.mkdir()
    spool.channel.restore()
    assert not unlocked.exists() and not without.exists()


def test_a_temporary_queue_ends_with_its_process(spool: Spool, other: Start) -> None:
    kill(other("spool.declare('events', Exchange('celeryev', 'fanout'), temporary=True)"))
    spool.send("celeryev", 1)
    assert bindings(spool, "celeryev") == ["events"] and spool.size("events") == 1
    spool.channel.restore()
    assert bindings(spool, "celeryev") == []
    assert held_and_waiting(spool) == []


def test_a_temporary_queue_that_somebody_declared_since_stays(spool: Spool, other: Start) -> None:
    process = other("spool.declare('pidbox', temporary=True)")
    spool.declare("pidbox", temporary=True)
    kill(process)
    spool.put(1, "pidbox")
    spool.channel.restore()
    assert spool.body("pidbox") == 1


def test_a_queue_that_lives_on_keeps_what_waits_when_a_process_dies(spool: Spool, other: Start) -> None:
    kill(other("spool.put(1)"))
    spool.channel.restore()
    assert spool.body() == 1


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "ä%", "celery@host.pidbox", "a=b"])
def test_any_name_is_a_queue_of_its_own_below_the_folder(spool: Spool, name: str) -> None:
    spool.declare(name, Exchange("exchange", "topic"), "key")
    spool.put(name, name)
    assert spool.size() == 0
    assert bindings(spool, "exchange") == [name]
    assert spool.body(name) == name
    spool.channel.queue_delete(name)
    assert bindings(spool, "exchange") == []
    assert {path.name for path in spool.root.parent.iterdir()} == {"broker"}


def test_a_removed_folder_is_made_anew(spool: Spool) -> None:
    spool.put(1)
    shutil.rmtree(spool.root)
    spool.put(2)
    assert spool.body() == 2


def test_a_purge_counts_what_it_removes(spool: Spool) -> None:
    for number in range(3):
        spool.put(number)
    assert (spool.channel.queue_purge("celery"), spool.size()) == (3, 0)


def test_what_one_look_found_is_not_given_twice_when_others_take_it_meanwhile(spool: Spool) -> None:
    for number in range(10):
        spool.put(number)
    other: Any = Spool(spool.root)
    assert [spool.body(), other.body(), other.body(), spool.body()] == [0, 1, 2, 3]
    other.close()
