"""What logs, events, inspections and commands show is not enough to touch a run.

Its claim id stands nowhere else.
"""

import json
import secrets
import subprocess
import sys
from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import CANCELLED, SCHEDULED, SUCCESS
from tests.process.conftest import MakeWorkers
from tests.process.workers import PATIENCE, Lane, WorkerShop, lanes, together
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

COMMANDS = [
    ("jobs", "list", "--json"),
    ("jobs", "show", "payroll", "--json"),
    ("runs", "list", "--json"),
    ("status", "--json"),
    ("explain", "payroll"),
    ("dead", "list", "--json"),
    ("jobs", "export"),
]


def shown_by_commands(shop: WorkerShop) -> str:
    """Return what the command line prints about everything."""
    base = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", "sqlbeat"]
    done = [
        subprocess.run([*base, *words], cwd=shop.folder, capture_output=True, text=True, check=True, timeout=PATIENCE)
        for words in COMMANDS
    ]
    return "\n".join(each.stdout + each.stderr for each in done)


def inspected(shop: WorkerShop) -> dict[str, Any]:
    """Return what every worker says of itself and of its tasks."""
    app = shop.place.app(control_exchange=shop.conf["control_exchange"])
    inspect = app.control.inspect(timeout=2)
    found = {name: getattr(inspect, name)() for name in ("active", "reserved", "scheduled", "stats", "conf")}
    app.close()
    return found


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_can_be_seen_of_a_run_is_not_enough_to_forge_its_message(make_workers: MakeWorkers, pool: str) -> None:
    shop = make_workers(Lane(pool, "redis", "postgresql", "late"))
    shop.write_app(None, task_acks_late=True)
    with shop.events() as events:
        worker = shop.work(pool, "--loglevel", "DEBUG", "--task-events").ready()
        shop.order("work.sleep", 20, name="payroll")
        beat = shop.start("beat", "--loglevel", "DEBUG")
        shop.wait_for_start("payroll")
        (run,) = shop.attempts("payroll")
        seen = inspected(shop)
        extension = next(iter(seen["stats"].values()))["sqlbeat"]
        header = {
            "v": 1,
            "store": extension["store"],
            "namespace": extension["namespace"],
            "run": run.run_id,
            "fence": run.fence,
        }
        forged = [
            {**header, "claim": claim} for claim in (secrets.token_hex(16), "0" * 32, run.run_id.replace("-", ""))
        ]
        for retries in (0, 1):
            for each in forged:
                shop.send(
                    "work.note",
                    headers={"sqlbeat": each, "periodic_task_name": "payroll"},
                    task_id=run.run_id,
                    retries=retries,
                )
        wait_for(lambda: _rejected(events, run.run_id) >= 2 * len(forged), PATIENCE, shop.logs)
        assert [(each.run_id, each.state) for each in shop.attempts("payroll")] == [(run.run_id, "running")]
        (claim_id,) = _claims(shop)
        everything = [worker.log, beat.log, json.dumps(events), json.dumps(seen), shown_by_commands(shop)]
        assert [text for text in everything if claim_id in text] == []
        assert run.run_id in worker.log and run.run_id in everything[2] and run.run_id in everything[4]
        shop.wait_for_states("payroll", SUCCESS)
        for each in forged:  # nor does it wake a run that has ended
            shop.send("work.note", headers={"sqlbeat": each}, task_id=run.run_id)
        wait_for(lambda: _rejected(events, run.run_id) >= 3 * len(forged), PATIENCE, shop.logs)
        unknown = shop.order("work.nobody_has_this")
        worker.says("it is not registered in this worker")
        assert [claim for claim in _claims(shop) if claim in worker.log] == [], unknown
    beat.stop()
    worker.stop()
    assert [line.task for line in shop.starts()] == ["work.sleep"], shop.logs()
    assert shop.states("payroll") == [SUCCESS]


SHOWS = """
from celery import signals

@signals.task_received.connect
def on_received(request=None, **_):
    print("Received:", request.request_dict, request.message.headers, request.message.properties)

@signals.task_prerun.connect
def on_prerun(task=None, **_):
    print("Begins:", task.request, task.request.headers, task.request.properties)

@signals.task_revoked.connect
def on_revoked(request=None, **_):
    print("Revoked:", request)

"""


def test_nothing_that_is_printed_of_a_request_shows_its_claim(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, extra=SHOWS)
        worker = shop.work(lane.pool, "--loglevel", "DEBUG").ready()
        revoked = shop.order("work.note")
        (claim,) = claims = list(shop.claim().values())

        def is_flagged() -> bool:
            shop.control("revoke", task_id=claim.run_id)
            return "flagged as revoked" in worker.log

        wait_for(is_flagged, PATIENCE, shop.logs)
        shop.publish(claim)
        shown, unknown, again = shop.order("work.show"), shop.order("work.nobody_has_this"), shop.order("work.retry", 1)
        claims += shop.dispatch().values()
        shop.wait_for_states(revoked, CANCELLED)
        shop.wait_for_states(unknown, SCHEDULED)
        for name in (shown, again):
            shop.wait_for_states(name, SUCCESS)
        worker.stop()
        for text in ("Received:", "Begins:", "Revoked:", "Request: <Context"):
            assert text in worker.log, text
        leaks = [line for line in worker.log.splitlines() for each in claims if each.claim_id in line]
        assert leaks == []

    together({lane: make_workers(lane) for lane in lanes()}, scenario)


def _claims(shop: WorkerShop) -> list[str]:
    import psycopg

    with psycopg.connect(shop.database_url) as connection:
        rows: list[Any] = connection.execute("SELECT ClaimId FROM JobRuns WHERE ClaimId IS NOT NULL").fetchall()
    return [str(claim) for (claim,) in rows]


def _rejected(events: list[dict[str, Any]], run_id: str) -> int:
    return sum(event["type"] == "task-rejected" and event["uuid"] == run_id for event in events)
