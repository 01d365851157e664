"""The runtime of a worker on each database.

It answers and writes in a thread of its own, never in the caller's.
"""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from celery_sqlbeat.celery_bridge.message_header import Header
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.model import Node
from celery_sqlbeat.worker.lease import StartAnswer, Started
from celery_sqlbeat.worker.lease.starts import StartQuestion
from celery_sqlbeat.worker.results import TaskResult
from celery_sqlbeat.worker.runtime import WorkerRuntime
from tests.contract.conftest import Place
from tests.support.world import World

PATIENCE = 30.0  # seconds


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def runtime(world: World, place: Place) -> Iterator[WorkerRuntime]:
    conf = {"sqlbeat_database_url": place.address, "sqlbeat_namespace": world.namespace}
    made = WorkerRuntime(read_settings(conf, {}), lambda: Node("worker-1", "worker", "here", 1, "0"), True)
    yield made
    made.close()


@pytest.mark.parametrize("is_open", [False, True], ids=["before the database answers", "after it has answered"])
def test_a_run_starts_and_ends_in_the_threads_of_the_runtime(
    world: World, runtime: WorkerRuntime, is_open: bool
) -> None:
    if is_open:
        runtime.open()
        wait_for(lambda: runtime.lease_manager is not None)
    name = world.add()
    (claim,) = world.claim().claims
    store_id = world.store.check_schema().store_id
    header = Header(store_id, world.namespace, claim.run_id, claim.claim_id, claim.fence, 0)
    answers: list[tuple[StartAnswer, int]] = []
    written: list[tuple[bool, int]] = []
    request = world.request(claim)
    runtime.ask(header, StartQuestion(request, lambda answer: answers.append((answer, threading.get_ident()))))
    wait_for(lambda: answers)
    ((answer, asked_by),) = answers
    assert isinstance(answer, Started) and answer.run_lease.take()
    runtime.finish(answer.run_lease, TaskResult.SUCCESS, then=lambda how: written.append((how, threading.get_ident())))
    wait_for(lambda: written)
    assert written[0][0] and world.states(name) == ["success"]
    assert threading.get_ident() not in (asked_by, written[0][1])
