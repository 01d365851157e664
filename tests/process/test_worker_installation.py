"""The extension installs itself in each worker, reports itself, and is silent if unwanted."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.model.nodes import read_queues
from tests.process.conftest import MakeWorkers
from tests.process.workers import CLOCKS, HEARTBEAT, PATIENCE, Lane, WorkerShop
from tests.support.beats import wait_for
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

LANE = Lane("threads", "redis", "sqlite", "late")


@pytest.fixture
def shop(make_workers: MakeWorkers) -> WorkerShop:
    return make_workers(LANE)


def stats(shop: WorkerShop) -> dict[str, Any]:
    """Return what the only worker says of itself, as `inspect stats` shows it."""
    app = shop.place.app(control_exchange=shop.conf["control_exchange"])
    found: dict[str, Any] = {}
    wait_for(lambda: found.update(app.control.inspect(timeout=1).stats() or {}) or found, PATIENCE, shop.logs)
    app.close()
    (said,) = found.values()
    assert isinstance(said, dict)
    return said


def queues(shop: WorkerShop) -> list[str]:
    nodes = shop.worker_nodes()
    return sorted(read_queues(nodes[0].queues).consumed) if nodes else []


def test_a_worker_says_which_store_it_is_on(shop: WorkerShop) -> None:
    worker = shop.work(LANE.pool).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    said = stats(shop)["sqlbeat"]
    (node,) = shop.worker_nodes()
    assert said["store"] == shop.store.check_schema().store_id and said["namespace"] == "default"
    assert said["node"] == node.node_id and said["version"] == node.package_version
    worker.stop()
    assert shop.worker_nodes()[0].stopped_at is not None


def test_queues_that_come_and_go_are_told(shop: WorkerShop) -> None:
    shop.conf["sqlbeat_heartbeat_interval"] = 1
    shop.write_app(LANE)
    shop.work(LANE.pool).ready()
    first = shop.place.queue("default")
    wait_for(lambda: queues(shop) == [first], PATIENCE, shop.logs)
    wait_for(lambda: stats(shop), PATIENCE, shop.logs)
    shop.control("add_consumer", queue="more-of-it", exchange=None, exchange_type="direct", routing_key="more-of-it")
    wait_for(lambda: queues(shop) == sorted([first, "more-of-it"]), PATIENCE, shop.logs)
    shop.control("cancel_consumer", queue="more-of-it")
    wait_for(lambda: queues(shop) == [first], PATIENCE, shop.logs)
    assert list(read_queues(shop.worker_nodes()[0].queues).left) == ["more-of-it"]


def test_a_worker_without_any_setting_of_ours_makes_no_file_and_says_once_what_it_lacks(shop: WorkerShop) -> None:
    text = (shop.folder / "shop.py").read_text()
    (shop.folder / "shop.py").write_text(re.sub(r'"sqlbeat_(?!test)', '"unused_', text))
    worker = shop.work(LANE.pool).ready()
    shop.send("work.note")
    wait_for(lambda: shop.starts(), PATIENCE, shop.logs)
    assert stats(shop)["sqlbeat"]["store"] is None
    worker.stop()
    assert worker.log.count("this worker was given no sqlbeat_database_url") == 1
    assert len([line for line in worker.log.partition(" ready.")[2].splitlines() if "sqlbeat" in line]) == 1
    assert not (shop.folder / "sqlbeat.db").exists()


def test_a_worker_that_is_there_before_the_tables_waits_for_them(shop: WorkerShop) -> None:
    file = shop.folder / "beat.db"
    moved = [path.rename(f"{path}.away") for path in shop.folder.glob("beat.db*")]
    worker = shop.work(LANE.pool).ready()
    worker.says("this worker cannot keep leases yet")
    assert not file.exists()
    for path in moved:
        path.rename(str(path).removesuffix(".away"))
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    job = shop.order("work.note")
    shop.dispatch()
    shop.wait_for_states(job, "success")


def test_a_worker_can_be_made_a_plain_one(shop: WorkerShop) -> None:
    worker = shop.work(LANE.pool, SQLBEAT_DISABLE="1").ready()
    shop.send("work.note")
    wait_for(lambda: shop.starts(), PATIENCE, shop.logs)
    assert "sqlbeat" not in stats(shop)
    worker.stop()
    assert not shop.worker_nodes()


def test_a_bad_setting_ends_the_worker_with_its_name(shop: WorkerShop) -> None:
    shop.write_app(LANE, sqlbeat_max_retries="many")
    worker = shop.work(LANE.pool)
    assert worker.wait() == 1
    assert "sqlbeat_max_retries = 'many'" in worker.log and "Traceback" not in worker.log


EMBEDDED = """\
import sys
import celery_sqlbeat, shop
from celery.contrib.testing.worker import start_worker

celery_sqlbeat.setup(shop.app)
with start_worker(shop.app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("way", ["ends", "is stopped"])
def test_a_worker_inside_another_program_keeps_leases_too(shop: WorkerShop, way: str) -> None:
    (shop.folder / "program.py").write_text(EMBEDDED)
    command = [sys.executable, "-W", "ignore", "program.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=shop.folder, env=_environment(), stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None and program.stdin is not None
        assert program.stdout.readline() == "ready\n"
        job = shop.order("work.sleep", 0.5 if way == "ends" else 600)
        shop.dispatch()
        shop.wait_for_start(job)
        if way == "is stopped":  # not in the main thread, so that no signal reaches it
            assert AdminView(shop.store).cancel(job)
            shop.wait_for_line("TaskStopped", job)
        else:
            shop.wait_for_states(job, "success")
        print(file=program.stdin, flush=True)
        assert program.wait(PATIENCE) == 0
    assert shop.worker_nodes()[0].stopped_at is not None


TWO = """\
import time
import celery_sqlbeat, shop
from celery import Celery
from celery.contrib.testing.worker import start_worker
from tests.process.worker_tasks import witnessed

other = Celery("other", broker=shop.app.conf.broker_url, set_as_current=False)
names = [name for name in shop.app.conf if name.startswith(("sqlbeat_", "task_", "broker_"))]
other.conf.update({{name: shop.app.conf[name] for name in names}})

@other.task(name="other.sleep", bind=True)
def sleep(self, seconds):
    with witnessed(self):
        time.sleep(seconds)

celery_sqlbeat.setup(shop.app)
celery_sqlbeat.setup(other)
# Two event loops of one program are one, in which two workers block each other now and then, also without us.
how = dict(pool="threads", use_eventloop=False, perform_ping_check=False, shutdown_timeout=30)
with start_worker(shop.app, queues=[{one!r}], **how), start_worker(other, queues=[{two!r}], **how):
    print("ready", flush=True)
    input()
"""


def test_what_one_of_two_workers_in_one_program_ends_says_nothing_of_the_others(shop: WorkerShop) -> None:
    one, two = shop.place.queue("default"), shop.place.queue("direct")
    (shop.folder / "program.py").write_text(TWO.format(one=one, two=two))
    command = [sys.executable, "-W", "ignore", "program.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=shop.folder, env=_environment(), stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
        long = shop.order("other.sleep", 4 * HEARTBEAT, options={"queue": two})
        shop.dispatch()
        shop.wait_for_start(long)
        short = shop.order("work.note")
        shop.dispatch()
        shop.wait_for_states(short, "success")
        shop.wait_for_states(long, "success")
        shop.wait_for_line("end", long)
        program.kill()  # two such workers wait for each other's end now and then, also without us
    (run,), (end,) = shop.attempts(long), shop.lines(long, what="end")
    assert run.finished_at is not None and run.finished_at.timestamp() >= end.at - CLOCKS


def _environment() -> dict[str, str]:
    import os

    root = str(Path(__file__).resolve().parents[2])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SQLBEAT_")}
    return {**kept, "PYTHONPATH": root}
