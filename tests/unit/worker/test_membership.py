"""A worker says that it is alive, what it consumes, and that it has stopped."""

import json
from datetime import datetime, timezone
from typing import Any

from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.model import Node
from celery_sqlbeat.model.nodes import mark_of, tell_tasks
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.manager import LeaseManager
from celery_sqlbeat.worker.membership import WorkerMembership
from tests.unit.worker.rig import Rig


class Register:
    """A NodeView that notes who said what."""

    def __init__(self) -> None:
        self.noted: list[Node] = []
        self.stopped: list[str] = []
        self.is_unavailable = False
        self.pending = 0

    def heartbeat(self, node: Node) -> datetime:
        if node.is_stopped:
            self.stopped.append(node.node_id)
        else:
            self.pending += 1
            if self.is_unavailable:
                raise DatabaseUnavailable("away")
            self.noted.append(node)
        return datetime(2027, 3, 1, tzinfo=timezone.utc)


class Post:
    """A lease manager whose worker stands in a register."""

    def __init__(self) -> None:
        self.register, self.queues, self.monotonic = Register(), '["celery"]', 50.0
        self.tasks: str | None = None
        register: Any = self.register
        line: Any = Rig().line
        membership = WorkerMembership(register, self.describe, 30.0, lambda: self.monotonic)
        self.lease_manager = LeaseManager(line, "worker-1", Timing(), lambda: self.monotonic, membership=membership)

    def describe(self) -> Node:
        return Node("worker-1", "worker", "host", 7, "0", queues=self.queues, tasks=self.tasks)

    def run_for(self, seconds: float) -> None:
        end = self.monotonic + seconds
        while (wait := self.lease_manager.turn()) + self.monotonic <= end:
            self.monotonic += max(wait, 0.001)
        self.monotonic = end


def test_a_worker_says_at_once_and_at_every_heartbeat_that_it_is_alive() -> None:
    post = Post()
    post.run_for(0)
    assert [node.queues for node in post.register.noted] == ['["celery"]']
    post.run_for(300.01)
    assert post.register.pending == 11


def test_a_queue_that_came_later_is_named_from_then_on() -> None:
    post = Post()
    post.run_for(0)
    post.queues = '["celery","other"]'
    post.run_for(31)
    assert post.register.noted[-1].queues == '["celery","other"]'


def test_the_tasks_of_a_worker_are_written_when_they_have_changed_and_now_and_then() -> None:
    post = Post()
    post.run_for(0)
    post.tasks = tell_tasks(["app.b", "app.a"])
    post.run_for(91)
    post.tasks = tell_tasks(["app.c"])
    post.run_for(91)
    told = [node.tasks for node in post.register.noted]
    assert [text for text in told if text] == ['["app.a", "app.b"]', '["app.c"]'] and len(told) == 7
    marks = [json.loads(node.details or "{}").get("tasks") for node in post.register.noted]
    assert marks == [None] + [mark_of('["app.a", "app.b"]')] * 3 + [mark_of('["app.c"]')] * 3
    post.run_for(3600)
    assert sum(node.tasks is not None for node in post.register.noted) == 3


def test_what_could_not_be_written_is_written_the_next_time() -> None:
    post = Post()
    post.tasks, post.register.is_unavailable = tell_tasks(["app.a"]), True
    post.run_for(5)
    post.register.is_unavailable = False
    post.run_for(5)
    assert [node.tasks for node in post.register.noted] == ['["app.a"]']


def test_while_the_database_is_away_it_tries_again_soon_and_not_in_a_busy_loop() -> None:
    post = Post()
    post.register.is_unavailable = True
    post.run_for(60)
    assert 50 < post.register.pending < 100
    post.register.is_unavailable = False
    post.run_for(1.1)
    assert len(post.register.noted) == 1


def test_a_worker_that_leaves_says_so() -> None:
    post = Post()
    post.lease_manager.leave()
    assert post.register.stopped == ["worker-1"]
    line: Any = Rig().line
    LeaseManager(line, "worker-1", Timing()).leave()
