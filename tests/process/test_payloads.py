"""Encrypted arguments of a sensitive job, through real beats and workers, and while keys change."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from celery_sqlbeat.model.lifecycle import CLAIMED, DLQ, RUNNING
from celery_sqlbeat.store.records import JobQuery
from tests.process.conftest import MakeWorkers
from tests.process.workers import PATIENCE, Lane, WorkerShop, lane_name
from tests.support.beats import Beat, wait_for

pytestmark = pytest.mark.slow

SECRET = "4711-0815"
OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
LANES = (Lane("prefork", "redis", "postgresql", "late"), Lane("threads", "rabbitmq", "sqlite", "early"))

# Its first try is ended by Celery's own retry, which makes another message of the arguments.
_TASK = """\
@app.task(name="shop.pay", bind=True)
def pay(self, card, amount=0):
    line = {"card": card, "retries": self.request.retries, "shown": [self.request.argsrepr, self.request.kwargsrepr]}
    with open("paid", "a") as file:
        print(json.dumps(line), file=file)
    while os.path.exists("hold"):
        time.sleep(0.05)
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
"""


class Payments:
    """A shop whose one job pays each second, with a card that nobody may see."""

    def __init__(self, shop: WorkerShop, lane: Lane) -> None:
        self.shop, self.lane = shop, lane

    def write(self, *keys: str) -> None:
        """Write the app for the processes that start from now on."""
        entry = {"task": "shop.pay", "schedule": 1.0, "args": [SECRET], "kwargs": {"amount": 1}}
        key: dict[str, Any] = {"sqlbeat_payload_key": list(keys)} if keys else {}
        self.shop.conf.pop("sqlbeat_payload_key", None)
        policies = {"pay": {"sensitive": True}}
        self.shop.write_app(self.lane, _TASK, beat_schedule={"pay": entry}, sqlbeat_policies=policies, **key)

    def start(self, *keys: str) -> Beat:
        self.write(*keys)
        return self.shop.start()

    def paid(self) -> list[dict[str, Any]]:
        file = self.shop.folder / "paid"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def goes_on(self, more: int = 3) -> None:
        before = len(self.paid())
        wait_for(lambda: len(self.paid()) >= before + more, PATIENCE, self.shop.logs)

    def kept(self) -> str:
        """Return the arguments as they stand in the table."""
        row = self.shop.store.jobs(JobQuery(names=["pay"]))["pay"]
        return f"{row.args} {row.kwargs}"

    def shows_a_payment(self, state: str) -> bool:
        """Ask for the tasks in a state as Flower does; return whether one is among them."""
        said = self.command("inspect", state, "--json")
        assert SECRET not in said.stdout + said.stderr
        return "shop.pay" in said.stdout

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        environ = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}{os.pathsep}{self.shop.folder}"}
        command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", *words]
        return subprocess.run(
            command, cwd=self.shop.folder, env=environ, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.mark.parametrize("lane", LANES, ids=lane_name)
def test_arguments_are_encrypted_and_hidden_while_their_keys_change(lane: Lane, make_workers: MakeWorkers) -> None:
    shop = make_workers(lane)
    payments = Payments(shop, lane)
    lost = payments.start("file:/nowhere/key")
    lost.says("sqlbeat_payload_key = file:/nowhere/key: the file cannot be read: No such file", seconds=PATIENCE)
    lost.stop()
    assert "Traceback" not in lost.log
    beat = payments.start(OLD)
    shop.work(lane.pool).ready()
    payments.goes_on()
    by_old = payments.kept()
    assert by_old.count("fernet:") == 2 and SECRET not in by_old

    shop.order("shop.pay", SECRET, name="pay-later", options={"countdown": 60}, policies={"sensitive": True})
    hold = shop.folder / "hold"
    hold.touch()
    before = len(payments.paid())
    wait_for(lambda: len(payments.paid()) > before, PATIENCE, shop.logs)
    for state in ("active", "scheduled"):
        wait_for(partial(payments.shows_a_payment, state), PATIENCE, shop.logs)
    hold.unlink()
    payments.command("sqlbeat", "jobs", "delete", "pay-later", "--force", "--yes")

    keyless = payments.start()  # beside the one that has the key
    keyless.says("no key of this process opens them", seconds=PATIENCE)
    payments.goes_on()
    assert payments.kept() == by_old, "a beat without the key writes nothing in plain text"
    beat.stop()
    wait_for(lambda: not {run.state for run in shop.runs()} & {CLAIMED, RUNNING}, PATIENCE, shop.logs)
    before = len(payments.paid())
    time.sleep(2.5)
    assert len(payments.paid()) == before, "and sends nothing"
    assert payments.command("sqlbeat", "check", "--timeout", "1").stdout.count("no key of this process opens them") == 1

    beat = payments.start(NEW, OLD)
    payments.goes_on()
    keyless.stop()
    done = payments.command("sqlbeat", "init", "--reencrypt")
    assert "the arguments of 1 jobs and one-offs are encrypted with the newest key now" in done.stdout, done.stderr
    beat.stop()
    payments.start(NEW)
    payments.goes_on()
    by_new = payments.kept()
    assert by_new != by_old and by_new.count("fernet:") == 2

    tries = payments.paid()
    assert {each["card"] for each in tries} == {SECRET} and {each["retries"] for each in tries} == {0, 1}
    assert all("***" in text and SECRET not in text for each in tries for text in each["shown"]), tries
    logs = "".join(each.log for each in [*shop.beats, *shop.workers])
    assert not [secret for secret in (SECRET, OLD, NEW) if secret in logs]
    assert not {run.state for run in shop.runs()} & {DLQ}
