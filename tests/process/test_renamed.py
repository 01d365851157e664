"""Upstream renames one symbol that this package needs.

A process ends with one line, or one fast path is off.

Never a worker that runs without leases in silence, never one that attracts leases and cannot start
them, never a message that nobody acknowledges. A few symbols here; all of the table with
SQLBEAT_TEST_RENAMES_ALL=1 (make renames).
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import celery_sqlbeat
from celery_sqlbeat.brokers import folder_url
from celery_sqlbeat.celery_bridge.symbol_row import Symbol
from celery_sqlbeat.celery_bridge.symbols import SYMBOLS
from tests.process.conftest import MakeShop, MakeWorkers
from tests.process.workers import PATIENCE, POOLS, Lane
from tests.support.beats import Shop, assert_sent_once, wait_for

pytestmark = pytest.mark.slow

ALL = bool(os.environ.get("SQLBEAT_TEST_RENAMES_ALL"))
FEW = (
    "celery.worker.worker:WorkController._process_task_sem",
    "celery.worker.request:Request._announce_revoked",
    "celery.beat:_evaluate_entry_args",
    "kombu.messaging:Producer._publish",
    "kombu.transport.redis:QoS._remove_from_indices",
    "celery.app.amqp:AMQP.argsrepr_maxsize",
    "amqp.connection:Connection.__init__ > frame_max",
    "kombu.transport.redis:Channel.conn_or_acquire",
)
EVERYWHERE = {"revoked"}  # a word that means one thing in all of the libraries
NOT_BY_NAME = {  # the word names a module, or something of Python, too: only tests/unit/celery_bridge has them
    "amqp.connection:Connection.transport",
    "amqp.serialization:dumps",
    "amqp.transport:_AbstractTransport.write",
    "celery.app.amqp:AMQP.routes",
    "celery.beat:info",
    "celery.utils.saferepr:saferepr",
    "celery.worker.request:Request.app",
    "celery.worker.request:Request.task",
    "celery.worker.worker:WorkController.setup_defaults > prefetch_multiplier",  # the name of a setting
    "kombu.common:maybe_declare",  # the name of a required symbol, too
    "kombu.compression:encoders",
    "kombu.serialization:dumps",
    "kombu.transport.redis:QoS.ack",
    "kombu.transport:TRANSPORT_ALIASES",  # the shop's own module could not be imported
}
FOLDER = "import celery_sqlbeat.embedded"  # a shop imports it, and knows folder:// from then on
ROOT = Path(__file__).parents[2]
RENAMED = Path(__file__).with_name("renamed")
ON_REDIS = Lane("prefork", "redis", "sqlite", "late")
ON_RABBITMQ = Lane("prefork", "rabbitmq", "sqlite", "late")


def named(symbol: Symbol) -> str:
    return f"{symbol.part} {symbol.path}"


def chosen(is_wanted: Callable[[Symbol], bool]) -> list[Symbol]:
    return [each for each in SYMBOLS if is_wanted(each) and (ALL or each.path in FEW) and each.path not in NOT_BY_NAME]


def renames(symbol: Symbol, folder: Path) -> dict[str, Any]:
    """Return the environment in which this symbol has another name.

    In all libraries, where its name means nothing else.
    """
    name = symbol.name.rpartition(".")[2]
    module = symbol.path.partition(":")[0]
    is_its_own = name.startswith("_") or "_" in name[3:] or name[0].isupper() or name in EVERYWHERE
    scope = "libraries" if is_its_own and not name.startswith("__") else "module"
    path = os.pathsep.join(map(str, (RENAMED, ROOT, folder)))
    return {"SQLBEAT_TEST_RENAMES": f"{scope} {module} {name}", "PYTHONPATH": path}


def lane_of(symbol: Symbol) -> Lane:
    return ON_RABBITMQ if "pyamqp" in symbol.only else ON_REDIS


def way_of(symbol: Symbol, shop: Shop) -> tuple[str, str | None]:
    """Return the pool and the broker's URL with which a symbol counts.

    None where it is the shop's own.
    """
    pool = "gevent" if "gevent" in symbol.only else "prefork"
    return pool, folder_url(shop.folder / "broker") if "brokers" in symbol.only else None


def refusals(log: str) -> list[str]:
    """Return the lines of ours in a log."""
    return [line for line in log.splitlines() if f"celery-sqlbeat {celery_sqlbeat.__version__} " in line]


@pytest.mark.parametrize("symbol", chosen(lambda one: one.part == "worker" and one.feature is None), ids=named)
def test_a_worker_ends_with_one_line_and_registers_nothing(symbol: Symbol, make_workers: MakeWorkers) -> None:
    shop = make_workers(lane_of(symbol))
    pool, url = way_of(symbol, shop)
    if url is not None:
        shop.write_app(ON_REDIS, FOLDER, broker_url=url)
    worker = shop.work(pool, **renames(symbol, shop.folder))
    assert worker.wait() == 1, worker.log
    (line,) = refusals(worker.log)
    assert symbol.name.rpartition(".")[2] in line and "SQLBEAT_DISABLE=1" in line
    assert not shop.worker_nodes()


@pytest.mark.parametrize("symbol", chosen(lambda one: one.part == "worker" and one.feature is not None), ids=named)
def test_a_worker_goes_on_without_a_fast_path_and_acknowledges(symbol: Symbol, make_workers: MakeWorkers) -> None:
    shop = make_workers(lane_of(symbol))
    worker = shop.work("prefork", **renames(symbol, shop.folder)).ready()
    job = shop.order("work.note")
    shop.dispatch()
    shop.wait_for_states(job, "success")
    worker.stop()
    assert worker.log.count(f'feature="{symbol.feature}" reason=') == 1, worker.log
    assert not shop.place.take()  # or what is not acknowledged would come again


@pytest.mark.parametrize("symbol", chosen(lambda one: one.part == "beat" and one.feature is None), ids=named)
def test_a_beat_ends_with_one_line_and_claims_nothing(symbol: Symbol, make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", lane_of(symbol).broker)
    _, url = way_of(symbol, shop)
    shop.write({"often": {"task": "shop.add", "schedule": 1.0, "args": [1]}}, url, FOLDER if url else "")
    beat = shop.start(**renames(symbol, shop.folder))
    assert beat.wait() == 1, beat.log
    (line,) = refusals(beat.log)
    assert symbol.name.rpartition(".")[2] in line and "Traceback" not in beat.log
    assert not shop.runs()


@pytest.mark.parametrize("symbol", chosen(lambda one: one.part == "beat" and one.feature is not None), ids=named)
def test_a_beat_goes_on_without_a_fast_path(symbol: Symbol, make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", lane_of(symbol).broker)
    shop.write({f"often-{number}": {"task": "shop.add", "schedule": 1.0, "args": [number]} for number in range(5)})
    beat = shop.start(**renames(symbol, shop.folder))
    shop.wait_for_slots(5, 3)
    beat.stop()
    assert beat.log.count(f'feature="{symbol.feature}" reason=') == 1, beat.log
    assert_sent_once(shop)


SABOTAGE = """
from celery import signals

@signals.worker_init.connect(weak=False)
def take_over(sender, **_):
    sender.{name} = type(sender).{name}.__get__(sender)  # Celery's own again, behind our back
"""


@pytest.mark.parametrize(
    ("pool", "name"), [("prefork", "_process_task_sem"), *((pool, "_process_task") for pool in POOLS)]
)
def test_a_worker_whose_hooks_are_not_called_never_registers(name: str, pool: str, make_workers: MakeWorkers) -> None:
    shop = make_workers(ON_REDIS)
    # Connected when the worker has found the extension: its handler comes after ours.
    late = f"@signals.celeryd_init.connect(weak=False)\ndef later(**_):\n    exec({SABOTAGE.format(name=name)!r})\n"
    shop.write_app(ON_REDIS, f"from celery import signals\n{late}")
    worker = shop.work(pool)
    assert worker.wait() == 1, worker.log
    assert len(refusals(worker.log)) == 1 and f"{name} is not replaced" in worker.log
    assert not shop.worker_nodes()


@pytest.mark.parametrize("way", ["multi", "embedded beat", "worker_main"])
def test_every_way_to_start_one_ends_with_the_line(way: str, make_workers: MakeWorkers) -> None:
    shop = make_workers(ON_REDIS)
    missing = {each.path: each for each in SYMBOLS}
    symbol = missing["celery.worker.worker:WorkController._process_task_sem"]
    options: tuple[str, ...] = ()
    if way == "embedded beat":
        symbol, options = missing["celery.beat:_evaluate_entry_args"], ("-B", "--scheduler", "celery_sqlbeat.Scheduler")
    environ = renames(symbol, shop.folder)
    if way == "multi":  # detached: its line is in its log file
        log = shop.folder / "detached.log"
        shop.work("prefork", "--detach", "--logfile", str(log), "--pidfile", str(shop.folder / "pid"), **environ).wait()
        wait_for(lambda: log.exists() and refusals(log.read_text()), PATIENCE, shop.logs)
        assert len(refusals(log.read_text())) == 1
    elif way == "worker_main":
        call = "import shop; shop.app.worker_main(['worker', '--pool', 'solo'])"
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", call],
            cwd=shop.folder,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 1 and len(refusals(ended.stderr)) == 1, ended.stderr
    else:
        worker = shop.work("prefork", *options, **environ)
        assert worker.wait() == 1, worker.log
        assert len(refusals(worker.log)) == 1
    assert not shop.worker_nodes()


def test_a_broken_installation_ends_a_worker_and_none_that_is_a_plain_one(make_workers: MakeWorkers) -> None:
    shop = make_workers(ON_REDIS)
    (shop.folder / "tenacity.py").write_text("raise ImportError('it is broken')\n")
    environ: dict[str, Any] = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, shop.folder)))}
    worker = shop.work("prefork", **environ)
    assert worker.wait() == 1, worker.log
    (line,) = refusals(worker.log)
    assert "it is broken" in line and "SQLBEAT_DISABLE=1" in line and "Traceback" not in worker.log
    shop.work("prefork", SQLBEAT_DISABLE="1", **environ).ready().stop()
