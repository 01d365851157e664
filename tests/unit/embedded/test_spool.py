"""The folder that stands in for a broker: what each step leaves behind, and what a kill between two steps costs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.embedded import owner
from celery_sqlbeat.embedded.spool import Spool

ROOT = Path(__file__).parents[3]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "broker")
    made.prepare()
    made.declare("celery")
    return made


@pytest.fixture
def other(spool: Spool) -> "Iterator[Callable[[str], subprocess.Popen[str]]]":
    """Another process that has the same folder, does something, says so and stays."""
    processes: list[subprocess.Popen[str]] = []

    def start(does: str) -> "subprocess.Popen[str]":
        code = (
            "import os, pathlib, sys, time\nfrom celery_sqlbeat.embedded.spool import Spool\n"
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


def taken(spool: Spool, queue: str = "celery") -> Any:
    found = spool.take(queue)
    return found.message if found else None


def files(spool: Spool) -> list[str]:
    return [path.name for path in spool.root.rglob("*.json")]


def test_messages_come_out_in_the_order_in_which_they_went_in(spool: Spool) -> None:
    for number in range(200):
        spool.put("celery", {"n": number})
    assert [taken(spool)["n"] for _ in range(200)] == list(range(200))
    assert taken(spool) is None


def test_a_higher_priority_comes_first(spool: Spool) -> None:
    for priority in (0, 9, 5):
        spool.put("celery", {"n": priority}, priority)
    assert [taken(spool)["n"] for _ in range(3)] == [9, 5, 0]


def test_an_acknowledged_message_leaves_no_file(spool: Spool) -> None:
    spool.put("celery", {"n": 1})
    found = spool.take("celery")
    assert found is not None
    spool.acknowledge(found.path)
    assert files(spool) == []


def test_a_message_given_back_comes_again_at_its_old_place_and_says_so(spool: Spool) -> None:
    spool.put("celery", {"n": 1})
    spool.put("celery", {"n": 2})
    found = spool.take("celery")
    assert found is not None
    assert not found.again
    spool.give_back(found.path)
    again = Spool(spool.root).take("celery")
    assert again is not None
    assert (again.message, again.again) == ({"n": 1}, True)


def test_a_message_that_is_being_written_is_seen_by_nobody(spool: Spool) -> None:
    half = owner.own_folder(spool.root) / "0-half.json"
    half.write_text('{"n":')
    assert taken(spool) is None
    assert spool.size("celery") == 0


def test_a_file_without_its_content_is_set_aside_and_stops_nobody(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    (spool.root / "queues" / "celery" / "0-torn.json").write_text("")
    spool.put("celery", {"n": 2})
    assert taken(spool) == {"n": 2}
    assert (spool.root / "broken" / "0-torn.json").exists()
    assert "was set aside" in caplog.text


def test_what_a_living_process_holds_stays_with_it(
    spool: Spool, other: "Callable[[str], subprocess.Popen[str]]"
) -> None:
    spool.put("celery", {"n": 1})
    other("spool.take('celery')")
    assert spool.restore() == 0
    assert taken(spool) is None


def test_what_a_killed_process_held_comes_back(spool: Spool, other: "Callable[[str], subprocess.Popen[str]]") -> None:
    spool.put("celery", {"n": 1})
    kill(other("spool.take('celery')"))
    assert spool.restore() == 1
    found = spool.take("celery")
    assert found is not None
    assert (found.message, found.again) == ({"n": 1}, True)
    assert len(list((spool.root / "owners").iterdir())) == 1, "the folder of the dead process is gone"


def test_a_child_that_outlives_its_killed_parent_keeps_no_message_from_others(
    spool: Spool, other: "Callable[[str], subprocess.Popen[str]]"
) -> None:
    spool.put("celery", {"n": 1})
    kill(other("spool.take('celery')\nif os.fork() == 0: time.sleep(60)"))
    assert spool.restore() == 1


def test_looking_for_the_dead_does_not_end_ones_own_life(
    spool: Spool, other: "Callable[[str], subprocess.Popen[str]]"
) -> None:
    spool.put("celery", {"n": 1})
    assert spool.take("celery") is not None
    spool.restore()
    other("assert spool.restore() == 0")


def test_a_temporary_queue_ends_with_its_process(spool: Spool, other: "Callable[[str], subprocess.Popen[str]]") -> None:
    kill(other("spool.declare('events', temporary=True)\nspool.bind('celeryev', ('', '', 'events'))"))
    spool.put("events", {"n": 1})
    assert spool.bindings("celeryev") == [("", "", "events")]
    spool.restore()
    assert spool.bindings("celeryev") == []
    assert files(spool) == []


def test_a_temporary_queue_that_somebody_declared_since_stays(
    spool: Spool, other: "Callable[[str], subprocess.Popen[str]]"
) -> None:
    process = other("spool.declare('pidbox', temporary=True)")
    spool.declare("pidbox", temporary=True)
    kill(process)
    spool.put("pidbox", {"n": 1})
    spool.restore()
    assert taken(spool, "pidbox") == {"n": 1}


def test_a_queue_that_lives_on_keeps_what_waits_when_a_process_dies(
    spool: Spool, other: "Callable[[str], subprocess.Popen[str]]"
) -> None:
    kill(other("spool.put('celery', {'n': 1})"))
    spool.restore()
    assert taken(spool) == {"n": 1}


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "", "ä%", "celery@host.pidbox", "a=b"])
def test_any_name_is_a_queue_of_its_own_below_the_folder(spool: Spool, name: str) -> None:
    spool.declare(name)
    spool.bind("exchange", ("key", "^.*$", name))
    spool.put(name, {"n": name})
    assert spool.size("celery") == 0
    assert spool.bindings("exchange") == [("key", "^.*$", name)]
    assert taken(spool, name) == {"n": name}
    spool.delete(name)
    assert spool.bindings("exchange") == []
    assert {path.name for path in spool.root.parent.iterdir()} == {"broker"}


def test_a_removed_folder_is_made_anew(spool: Spool) -> None:
    import shutil

    spool.put("celery", {"n": 1})
    shutil.rmtree(spool.root)
    spool.put("celery", {"n": 2})
    assert taken(spool) == {"n": 2}


def test_a_purge_counts_what_it_removes(spool: Spool) -> None:
    for number in range(3):
        spool.put("celery", {"n": number})
    assert (spool.purge("celery"), spool.size("celery")) == (3, 0)


def test_what_one_look_found_is_not_given_twice_when_others_take_it_meanwhile(spool: Spool) -> None:
    for number in range(10):
        spool.put("celery", {"n": number})
    one, two = Spool(spool.root), Spool(spool.root)
    took = [taken(one)["n"], taken(two)["n"], taken(two)["n"], taken(one)["n"]]
    assert took == [0, 1, 2, 3]
