"""What a worker does with messages while it has no store, or another one than their beat."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_sqlbeat.celery_bridge.message_header import Header
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.model import Node, StartRequest
from celery_sqlbeat.store import open_store
from celery_sqlbeat.worker.lease import StartAnswer, WrongStore
from celery_sqlbeat.worker.lease.starts import StartQuestion
from celery_sqlbeat.worker.runtime import WorkerRuntime
from tests.support.headers import CLAIM, STORE

FORGOTTEN = Header(STORE, "default", CLAIM.run_id, CLAIM.claim_id, 7, 0, None, True)
REQUEST = StartRequest(CLAIM.run_id, CLAIM.claim_id, 7, "a3bb189e-8bf9-3888-9912-ace4e6543002", 0)
MakeRuntime = Callable[[bool], WorkerRuntime]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


@pytest.fixture
def make(file: Path) -> Iterator[MakeRuntime]:
    made: list[WorkerRuntime] = []

    def worker_runtime(is_configured: bool) -> WorkerRuntime:
        settings = read_settings({"sqlbeat_database_url": f"sqlite:///{file}"}, {})
        made.append(WorkerRuntime(settings, lambda: Node("worker-1", "worker", "here", 1, "0"), is_configured))
        return made[-1]

    yield worker_runtime
    for each in made:
        each.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("is_configured", [True, False])
@pytest.mark.parametrize("is_empty", [True, False])
def test_without_a_store_what_was_forgotten_is_for_anybody(
    make: MakeRuntime, file: Path, is_configured: bool, is_empty: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The beat that sent it has one, so that it is another one than this worker's."""
    if is_empty:
        sqlite3.connect(file).close()
    worker_runtime = make(is_configured)
    worker_runtime.open()
    until(lambda: worker_runtime.is_for_anybody(FORGOTTEN))
    until(lambda: caplog.records)
    (said,) = [record.getMessage() for record in caplog.records]
    assert ("sqlbeat_database_url" in said) is not is_configured
    assert ("cannot keep leases yet" in said) is is_configured
    assert worker_runtime.is_unavailable and worker_runtime.store_id is None and file.exists() is is_empty


def test_what_was_forgotten_and_came_before_the_first_try_goes_back_once(make: MakeRuntime) -> None:
    worker_runtime = make(False)
    answers: list[StartAnswer] = []
    worker_runtime.ask(FORGOTTEN, StartQuestion(REQUEST, answers.append))
    until(lambda: answers)
    assert isinstance(answers[0], WrongStore) and worker_runtime.is_for_anybody(FORGOTTEN)


def test_with_a_store_what_was_forgotten_there_asks_for_its_start(make: MakeRuntime, file: Path) -> None:
    store = open_store(read_settings({"sqlbeat_database_url": f"sqlite:///{file}"}, {}))
    store.migrate()
    own = FORGOTTEN._replace(store=store.check_schema().store_id)
    store.close()
    worker_runtime = make(True)
    worker_runtime.open()
    until(lambda: worker_runtime.lease_manager is not None)
    assert not worker_runtime.is_for_anybody(own)
    assert worker_runtime.is_for_anybody(FORGOTTEN) and worker_runtime.is_for_anybody(own._replace(namespace="another"))
