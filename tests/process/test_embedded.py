"""The broker without a server under real processes.

Nothing is lost or doubled, and a killed consumer keeps nothing.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.brokers import folder_url
from tests.support.beats import PATIENCE, wait_for

ROOT = Path(__file__).parents[2]
COUNT = 3000  # messages of each publisher

pytestmark = pytest.mark.slow


class Crowd:
    """Publishers and consumers of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = folder_url(folder / "broker")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start one."""
        command = [sys.executable, "-m", "tests.process.folder_stress", *arguments]
        process = subprocess.Popen(command, cwd=ROOT)
        self.processes.append(process)
        return process

    def publish(self, name: str) -> "subprocess.Popen[bytes]":
        """Start a publisher."""
        return self.start("publish", self.url, name, str(COUNT))

    def consume(self, name: str, pace: float = 0) -> "subprocess.Popen[bytes]":
        """Start a consumer."""
        return self.start("consume", self.url, str(self.folder / f"{name}.ledger"), str(pace))

    def consumed(self) -> list[Any]:
        """Return what was written down so far, by whole lines."""
        texts = [path.read_text() for path in self.folder.glob("*.ledger")]
        return [json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def stop(self) -> None:
        """Let the consumers end."""
        (self.folder / "stop").touch()
        for process in self.processes:
            process.wait(PATIENCE)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    made = Crowd(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def every_message(*publishers: str) -> set[tuple[str, int]]:
    return {(name, number) for name in publishers for number in range(COUNT)}


def test_two_publishers_and_two_consumers_pass_each_message_once(crowd: Crowd) -> None:
    publishers = [crowd.publish("a"), crowd.publish("b")]
    crowd.consume("one")
    crowd.consume("two")
    wait_for(lambda: len(crowd.consumed()) >= 2 * COUNT, 4 * PATIENCE, lambda: str(len(crowd.consumed())))
    assert [process.wait(PATIENCE) for process in publishers] == [0, 0]
    crowd.stop()
    counted = Counter((name, number) for name, number, _ in crowd.consumed())
    assert counted.keys() == every_message("a", "b")
    assert set(counted.values()) == {1}
    assert all((crowd.folder / f"{name}.ledger").exists() for name in ("one", "two")), "both had a part in it"
    left = [path for path in (crowd.folder / "broker").rglob("*.json") if "exchanges" not in path.parts]
    assert left == [], "an acknowledged message leaves no file"


def test_what_a_killed_consumer_held_goes_to_the_other_one(crowd: Crowd) -> None:
    crowd.publish("a").wait(PATIENCE)
    slow = crowd.consume("slow", pace=0.05)
    wait_for(lambda: len(crowd.consumed()) >= 3, PATIENCE)
    slow.kill()
    slow.wait()
    seen_by_slow = {(name, number) for name, number, _ in crowd.consumed()}
    crowd.consume("other")
    wait_for(
        lambda: {(name, number) for name, number, _ in crowd.consumed()} == every_message("a"),
        4 * PATIENCE,
        lambda: str(len(crowd.consumed())),
    )
    crowd.stop()
    counted = Counter((name, number) for name, number, _ in crowd.consumed())
    doubled = {message for message, count in counted.items() if count > 1}
    assert len(doubled) <= 1, "only the message that was not acknowledged when its consumer died comes twice"
    assert doubled <= seen_by_slow
    assert any(again for *_, again in crowd.consumed()), "what comes again says so"


SHOP = """\
from celery import Celery
from celery_sqlbeat.brokers import folder_url

app = Celery("shop", broker=folder_url({folder!r}))
app.conf.update(worker_prefetch_multiplier=1)


@app.task(name="shop.note", acks_late=True)
def note(number):
    import os, time
    time.sleep({seconds})
    with open({ledger!r}, "a") as out:
        out.write("%d %d\\n" % (number, os.getpid()))
"""


class Shop:
    """Celery workers on one folder."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.ledger = folder, folder / "ledger"
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "shop.py").write_text(
            SHOP.format(folder=str(folder / "broker"), ledger=str(self.ledger), seconds=seconds)
        )

    def celery(self, *arguments: str) -> list[str]:
        """Return a command line."""
        return [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", *arguments]

    def worker(self, name: str, *options: str) -> "subprocess.Popen[bytes]":
        """Start a worker."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self.celery("worker", "-n", f"{name}@shop", "-l", "info", *options),
                cwd=self.folder,
                env=self.environ(),
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        wait_for(lambda: "ready." in self.log(name), PATIENCE, lambda: self.log(name))
        return process

    def ask(self, *arguments: str) -> str:
        """Return what a command prints."""
        command = self.celery(*arguments)
        return subprocess.run(command, cwd=self.folder, env=self.environ(), capture_output=True, text=True).stdout

    def environ(self) -> dict[str, str]:
        """Return where Python finds the shop and this package."""
        return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}"}

    def log(self, name: str) -> str:
        """Return what a worker has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def send(self, count: int) -> None:
        """Send so many tasks from a process of their own."""
        code = f"import shop\nfor number in range({count}): shop.note.delay(number)"
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=self.folder, env=self.environ(), check=True)

    def done(self) -> list[int]:
        """Return the numbers that were written down."""
        return [int(line.split()[0]) for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []


def waiting(shop: Shop) -> list[Path]:
    """Return the messages that nobody has taken."""
    return list((shop.folder / "broker" / "queues" / "celery").glob("*.json"))


@pytest.fixture
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(tmp_path, request.param)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


@pytest.mark.parametrize("shop", [0.0], indirect=True)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_workers_of_celery_take_each_task_once_and_answer_to_remote_control(shop: Shop, pool: str) -> None:
    shop.worker("one", "-c", "2", "-P", pool)
    shop.worker("two", "-c", "2", "-P", pool)
    shop.send(300)
    wait_for(lambda: len(shop.done()) >= 300, 2 * PATIENCE, lambda: shop.log("one") + shop.log("two"))
    assert sorted(shop.done()) == list(range(300))
    wait_for(
        lambda: set(re.findall("(one|two)@shop", shop.ask("inspect", "ping", "-t", "2"))) == {"one", "two"}, PATIENCE
    )
    assert "Traceback" not in shop.log("one") + shop.log("two")


@pytest.mark.parametrize("shop", [0.5], indirect=True)
def test_the_late_acknowledged_tasks_of_a_killed_worker_run_on_the_other_one(shop: Shop) -> None:
    first = shop.worker("one", "-c", "2")
    shop.send(12)
    wait_for(lambda: len(shop.done()) >= 2, PATIENCE, lambda: shop.log("one"))
    first.kill()
    first.wait()
    shop.worker("two", "-c", "2")
    wait_for(lambda: set(shop.done()) == set(range(12)), 2 * PATIENCE, lambda: shop.log("two"))
    wait_for(lambda: waiting(shop) == [], PATIENCE)
    queues = {path.name for path in (shop.folder / "broker" / "queues").iterdir()}
    assert "one@shop.celery.pidbox" not in queues, "the queues of the dead worker are gone"


@pytest.mark.parametrize("shop", [0.0], indirect=True)
def test_a_worker_starts_and_stops_in_order_and_leaves_no_message_behind(shop: Shop) -> None:
    worker = shop.worker("one", "-c", "1")
    shop.send(5)
    wait_for(lambda: len(shop.done()) == 5, PATIENCE, lambda: shop.log("one"))
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert [path.name for path in (shop.folder / "broker" / "queues").iterdir()] == ["celery"]
    assert waiting(shop) == []
