"""What is fired and forgotten runs as stock beat would have it.

Each message once, wherever a worker takes it.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import DISPATCHED, SUCCESS
from tests.process.conftest import MakeShop
from tests.support.beats import PATIENCE, Beat, Shop, wait_for
from tests.support.views import NodeView

pytestmark = pytest.mark.slow

# A body writes its run, its worker and what it knows of itself; one line is one write.
TASKS = """
from celery.signals import celeryd_init
from kombu.common import Broadcast
from celery_sqlbeat import current_run

@app.task(name="shop.body", bind=True)
def body(self, seconds=0):
    line = json.dumps([self.request.id, self.request.hostname, current_run() is not None]) + "\\n"
    file = os.open("bodies.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)
    time.sleep(seconds)

# On Redis stock beat, too, reaches nobody by a Broadcast: kombu does not know there what its exchange is.
own_queue = Queue({everybody!r} + os.environ.get("WHO", ""), Exchange({everybody!r}, type="fanout"))
app.conf.task_queues.append(own_queue if app.conf.broker_url.startswith("redis") else Broadcast({everybody!r}))
app.conf.task_routes = {{"shop.to_all": {{"queue": app.conf.task_queues[-1]}}}}
app.task(name="shop.to_all", bind=True)(body.run.__func__)
"""


def everybody(shop: Shop) -> str:
    return f"{shop.place.prefix}.everybody"


def write(shop: Shop, seconds: float = 0.0, task: str = "shop.body", **conf: Any) -> None:
    entry = {"task": task, "schedule": 1.0, "args": [seconds]}
    shop.write({"every-second": entry}, extra=TASKS.format(everybody=everybody(shop)), **conf)


def work(shop: Shop, pool: str, name: str, *queues: str, **environ: str) -> Beat:
    log = shop.folder / f"{name}.log"
    names = ",".join((shop.place.queue("default"), *queues))
    options = ["--pool", pool, "--concurrency", "4", "--queues", names, "--hostname", f"{name}@{shop.place.prefix}"]
    worker = Beat(shop.spawn(log, "worker", *options, "--without-mingle", "--without-gossip", **environ), log)
    shop.beats.append(worker)
    worker.says(" ready.", seconds=2 * PATIENCE)
    return worker


def bodies(shop: Shop) -> list[tuple[str, str, bool]]:
    file: Path = shop.folder / "bodies.log"
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def outcomes(shop: Shop) -> Counter[str]:
    return Counter(run.state for run in shop.runs())


LANES = [("prefork", "postgresql", "redis"), ("threads", "sqlite", "rabbitmq")]


@pytest.mark.parametrize(("pool", "database", "broker"), LANES)
def test_a_backlog_that_waits_for_its_first_worker_runs_whole(
    make_shop: MakeShop, pool: str, database: str, broker: str
) -> None:
    """The bodies take longer than the interval, so one always holds the job when another begins."""
    shop = make_shop(database, broker)
    write(shop, seconds=1.5)
    beat = shop.start()
    wait_for(lambda: len(shop.dispatched()) >= 10, 2 * PATIENCE, shop.logs)
    worker = work(shop, pool, "new")
    forgotten = {run.run_id for run in shop.dispatched()}
    wait_for(lambda: forgotten <= {run.run_id for run in shop.runs() if run.state == SUCCESS}, PATIENCE, shop.logs)
    beat.stop()
    wait_for(lambda: set(outcomes(shop)) <= {SUCCESS, "skipped"}, PATIENCE, shop.logs)
    assert Counter(run for run, _, _ in bodies(shop)).keys() >= forgotten
    assert max(Counter(run for run, _, _ in bodies(shop)).values()) == 1
    assert all(has_run for _, _, has_run in bodies(shop))
    assert not worker.events("start_rejected")


@pytest.mark.parametrize(("pool", "database", "broker"), LANES)
def test_the_backlog_of_a_plain_worker_is_lost_on_no_way_to_its_successor(
    make_shop: MakeShop, pool: str, database: str, broker: str
) -> None:
    shop = make_shop(database, broker)
    write(shop, seconds=8, task_acks_late=True, worker_prefetch_multiplier=1)
    old = work(shop, pool, "old", SQLBEAT_DISABLE="1")
    shop.start()
    wait_for(lambda: len(shop.dispatched()) >= 12, 2 * PATIENCE, shop.logs)
    old.process.terminate()
    new = work(shop, pool, "new")
    sent = {run.run_id for run in shop.dispatched()}
    wait_for(lambda: sent <= {run for run, _, _ in bodies(shop)}, 2 * PATIENCE, shop.logs)
    assert {name.partition("@")[0] for _, name, _ in bodies(shop)} == {"old", "new"}
    assert max(Counter(run for run, _, _ in bodies(shop)).values()) == 1
    assert not new.events("start_rejected")


@pytest.mark.parametrize(("pool", "database", "broker"), LANES)
def test_a_worker_without_the_databases_address_runs_every_slot(
    make_shop: MakeShop, pool: str, database: str, broker: str
) -> None:
    shop = make_shop(database, broker)
    write(shop)
    module = shop.folder / "shop.py"
    module.write_text(re.sub(r'"sqlbeat_database_url"', '"unused"', module.read_text()))
    worker = work(shop, pool, "lacking")
    worker.says("this worker was given no sqlbeat_database_url")
    beat = shop.start(SQLBEAT_DATABASE_URL=shop.database_url)
    wait_for(lambda: len(shop.dispatched()) >= 11, 2 * PATIENCE, shop.logs)
    beat.stop()
    sent = {run.run_id for run in shop.dispatched()}
    wait_for(lambda: sent <= {run for run, _, _ in bodies(shop)}, PATIENCE, shop.logs)
    assert len(bodies(shop)) == len(sent) and set(outcomes(shop)) <= {DISPATCHED, "scheduled", "skipped"}
    assert not any(has_run for _, _, has_run in bodies(shop))
    assert not [node for node in NodeView(shop.store).seen(3600) if node.kind == "worker"]
    assert worker.log.count("this worker was given no sqlbeat_database_url") == 1
    assert not (shop.folder / "sqlbeat.db").exists()


def test_a_worker_on_another_store_runs_what_is_forgotten_and_returns_what_is_leased(make_shop: MakeShop) -> None:
    shop, other = make_shop("sqlite", "redis"), make_shop("postgresql", "redis")
    write(shop)
    stranger = work(shop, "threads", "stranger", SQLBEAT_DATABASE_URL=other.database_url)
    beat = shop.start()
    wait_for(lambda: len(bodies(shop)) >= 3, 2 * PATIENCE, shop.logs)
    assert not stranger.events("message_refused") + stranger.events("message_returned")
    work(shop, "threads", "own")
    wait_for(lambda: outcomes(shop)[SUCCESS] >= 3, 2 * PATIENCE, shop.logs)
    beat.stop()
    runs = {run.run_id: run for run in shop.runs()}
    for run_id, name, has_run in bodies(shop):
        assert has_run == name.startswith("own@") == (runs[run_id].started_at is not None)
    assert max(Counter(run for run, _, _ in bodies(shop)).values()) == 1


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_each_worker_runs_a_message_to_everybody(make_shop: MakeShop, broker: str) -> None:
    shop = make_shop("sqlite", broker)
    write(shop, task="shop.to_all")
    workers = [
        work(shop, "threads", name, everybody(shop) + (name if broker == "redis" else ""), WHO=name)
        for name in ("one", "two")
    ]
    wait_for(lambda: len([n for n in NodeView(shop.store).seen(60) if n.kind == "worker"]) == 2, PATIENCE, shop.logs)
    beat = shop.start()
    wait_for(lambda: len(shop.dispatched()) >= 5, 2 * PATIENCE, shop.logs)
    beat.stop()
    sent = {run.run_id for run in shop.dispatched()}
    wait_for(lambda: len(bodies(shop)) >= 2 * len(sent), PATIENCE, shop.logs)
    ran = Counter((run, name.partition("@")[0]) for run, name, _ in bodies(shop))
    assert ran == Counter((run, name) for run in sent for name in ("one", "two"))
    assert not [line for worker in workers for line in worker.events("start_rejected")]
