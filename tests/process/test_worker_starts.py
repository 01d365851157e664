"""What begins, and what does not.

No body without its lease, one per attempt, and no message is lost on the way.
"""

import re
import time
import uuid
from collections import Counter
from typing import Any, cast

import pytest
from kombu.common import Broadcast
from kombu.entity import Exchange

from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.lifecycle import SUCCESS, released
from tests.process.conftest import MakeWorkers
from tests.process.outcomes import assert_outcome
from tests.process.workers import (
    HEARTBEAT,
    LANES,
    PATIENCE,
    Lane,
    WorkerShop,
    assert_calm,
    lane_name,
    lanes,
    read_lease,
    together,
)
from tests.support.beats import wait_for
from tests.support.brokers import Wire
from tests.support.views import AdminView, BeatView

pytestmark = pytest.mark.slow

ON_POSTGRESQL = Lane("prefork", "rabbitmq", "postgresql", "late")
HOLDERS = [Lane("prefork", "redis", "postgresql", "late"), Lane("threads", "rabbitmq", "sqlite", "early")]
RETURNS = "It returns"


def are_rejected(events: list[dict[str, Any]], *run_ids: str) -> bool:
    """Whether each of these messages was reported as dropped, as often as it is named here."""
    dropped = [event["uuid"] for event in events if event["type"] == "task-rejected" and not event.get("requeue")]
    return all(dropped.count(run_id) >= run_ids.count(run_id) for run_id in run_ids)


# The main process loses its connection before it hears from the child that this one has taken the
# task.
_CUT_AT_ONCE = """
import os, time
from celery.signals import worker_ready

@worker_ready.connect
def prepare(sender, **_):
    hand_over = sender.pool.apply_async

    def hand_over_and_cut(*args, **kwargs):
        sender.pool.apply_async = hand_over
        job = hand_over(*args, **kwargs)

        def cut():
            if job._write_to is None:
                sender.hub.call_soon(cut)
                return
            while not os.path.exists("witness.log"):
                time.sleep(0.01)
            raise ConnectionResetError("by the test")

        sender.hub.call_soon(cut)
        return job

    sender.pool.apply_async = hand_over_and_cut
"""


@pytest.mark.parametrize("acks", ["early", "late"])
def test_a_body_that_began_as_the_connection_broke_is_not_given_back(make_workers: MakeWorkers, acks: str) -> None:
    lane = Lane("prefork", "redis", "postgresql", acks)
    shop = make_workers(lane)
    shop.write_app(lane, extra=_CUT_AT_ONCE)
    worker = shop.work(concurrency=1).ready()
    name = shop.order("work.sleep", 2)
    shop.dispatch()
    worker.says("by the test", seconds=PATIENCE)
    shop.wait_for_states(name, "success")
    (run,) = shop.attempts(name)
    assert [start.fence for start in shop.starts(name)] == [run.fence], shop.logs()
    assert_calm(worker)


@pytest.mark.parametrize("lane", lanes("prefork", "threads", among=HOLDERS), ids=lane_name)
def test_nothing_begins_without_its_lease(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    worker = shop.work(lane.pool).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    held = shop.order("work.note")
    shop.dispatch()[held]
    shop.wait_for_outcome(held)
    again = shop.order("work.note")
    (claim,) = shop.claim().values()
    with shop.row_locked(again):
        shop.publish(claim, mark=False)
        worker.says(claim.run_id)  # received
        plain = [shop.send("work.note") for _ in range(4)]  # each of them after ours
        wait_for(lambda: {line.run for line in shop.starts()} >= set(plain), PATIENCE, shop.logs)
        assert not shop.starts(again)
    shop.wait_for_outcome(again)
    assert_outcome(shop, again, RETURNS)
    worker.stop()


_BROADCAST = """
from kombu import Exchange
from kombu.common import Broadcast
news = Broadcast("{name}", exchange=Exchange("{name}", type="fanout", auto_delete=True))
app.conf.task_queues = [*app.conf.task_queues, news]
"""


def test_of_the_copies_of_a_broadcast_one_begins(make_workers: MakeWorkers) -> None:
    """docs/adoption.md says so."""
    lane = Lane("threads", "rabbitmq", "postgresql", "late")
    shop = make_workers(lane)
    news = f"{shop.place.prefix}.news"
    shop.write_app(lane, extra=_BROADCAST.format(name=news))
    exchange = cast(Any, Exchange)(news, type="fanout", auto_delete=True)
    shop.place.queues["news"] = cast(Any, Broadcast)(news, exchange=exchange)
    queues = ("--queues", f"{shop.place.queue('default')},{news}")
    with shop.events() as events:
        for worker in [shop.work(lane.pool, *queues) for _ in range(2)]:
            worker.ready()
        name = shop.order("work.note", options={"queue": news})
        run_id = shop.dispatch()[name].run_id
        shop.wait_for_outcome(name)
        wait_for(lambda: are_rejected(events, run_id), PATIENCE, shop.logs)
    assert len(shop.starts(name)) == 1
    assert_outcome(shop, name, RETURNS)


@pytest.mark.parametrize("lane", lanes(), ids=lane_name)
def test_stale_and_duplicate_messages_are_dropped_and_seen(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    names = [shop.order("work.note") for _ in range(10)]
    twice, again, cancelled = shop.order("work.sleep", 1.5), shop.order("work.note"), shop.order("work.note")
    claims = shop.claim()
    shop.publish(*claims.values(), *(claims[name] for name in (*names, twice, again)), mark=False)
    given = BeatView(shop.store, "beat of the test").release_claims([claims[again]], released("test").reason or "")
    assert given.done == {claims[again].run_id}
    assert AdminView(shop.store).cancel(cancelled)
    (newer,) = shop.claim().values()
    assert newer.run_id == claims[again].run_id and newer.fence > claims[again].fence
    shop.publish(newer)
    once = [claims[name].run_id for name in (*names, twice)]
    with shop.events() as events:
        worker = shop.work(lane.pool).ready()
        dropped = [*once, newer.run_id, newer.run_id]
        wait_for(lambda: are_rejected(events, *dropped), PATIENCE, shop.logs)
        revoked = "task-revoked", claims[cancelled].run_id
        wait_for(lambda: revoked in [(each["type"], each.get("uuid")) for each in events], PATIENCE, shop.logs)
        shop.wait_for_outcome(*names, twice, again)
        worker.stop()
    for name in (*names, twice, again):
        assert_outcome(shop, name, RETURNS)
        assert len(shop.starts(name)) == 1, shop.logs()
    assert not shop.starts(cancelled)
    results = shop.results()
    ended = {run_id: one["status"] for run_id, one in results.items()}
    assert ended == {**dict.fromkeys([*once, newer.run_id], "SUCCESS"), claims[cancelled].run_id: "REVOKED"}
    assert shop.place.take() == []  # all of them were acknowledged
    assert_calm(worker)
    assert not any(claim.claim_id in worker.log or claim.claim_id in repr(events) for claim in claims.values())


def test_a_message_of_another_store_or_namespace_goes_back(make_workers: MakeWorkers) -> None:
    lanes_here = [ON_POSTGRESQL, Lane("threads", "redis", "sqlite", "early"), Lane("gevent", "redis", "sqlite", "late")]

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        other, elsewhere = str(uuid.uuid4()), "elsewhere"
        far, near, good = shop.order("work.note"), shop.order("work.note"), shop.order("work.note")
        alien = shop.order("work.nobody_has_this")  # Celery would drop what it does not know
        claims = shop.claim()
        shop.publish(claims[far], claims[alien], store_id=other)
        shop.publish(claims[near], namespace=elsewhere)
        worker = shop.work(lane.pool).ready()
        worker.says(other)
        worker.says(elsewhere)
        shop.publish(claims[good])
        shop.wait_for_outcome(good)
        assert_outcome(shop, good, RETURNS)
        worker.stop()
        assert not shop.starts(far) and not shop.starts(near)
        left = {message.headers["id"] for message in shop.place.take()}
        assert left == {claims[each].run_id for each in (far, near, alien)}, shop.logs()
        assert worker.log.count("ERROR") < 20, "it comes back with a delay"
        assert shop.states(far) == shop.states(near) == shop.states(alien) == ["claimed"]

    together({lane: make_workers(lane) for lane in lanes_here}, scenario)


def test_what_a_worker_elsewhere_returns_goes_to_the_one_that_can_run_it(make_workers: MakeWorkers) -> None:
    """Redis hands a message to the longest waiter, which may be the worker that returns it."""
    lanes_here = [
        Lane("threads", "redis", "postgresql", "early"),
        Lane("gevent", "redis", "postgresql", "late"),
        Lane("prefork", "rabbitmq", "postgresql", "early"),
    ]

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        stranger = shop.work(lane.pool, SQLBEAT_NAMESPACE="elsewhere").ready()
        shop.work(lane.pool).ready()
        jobs = [shop.order("work.note") for _ in range(24)]
        shop.dispatch()
        shop.wait_for_outcome(*jobs)
        assert [shop.states(job) for job in jobs] == [[SUCCESS]] * len(jobs)
        returned = Counter(re.findall(r"message_id=(\S+)", "\n".join(stranger.events("message_refused"))))
        assert returned, "the workers share their queue"
        again = sum(count - 1 for count in returned.values())
        if lane.broker == "redis":  # RabbitMQ asks its consumers in turns
            assert again <= len(returned) / 4, f"{returned}\n{shop.logs()}"

    together({lane: make_workers(lane) for lane in lanes_here}, scenario)


def test_a_queue_full_of_messages_of_another_store_lets_ours_pass(make_workers: MakeWorkers) -> None:
    """As after a database was made anew.

    The broker hands out what came back before what came later.
    """
    lanes_here = [ON_POSTGRESQL, Lane("threads", "redis", "sqlite", "early")]

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        far, good = shop.order("work.note"), shop.order("work.note")
        claims = shop.claim()
        shop.publish(*[claims[far]] * 400, store_id=str(uuid.uuid4()))
        shop.publish(claims[good])
        worker = shop.work(lane.pool).ready()
        assert_outcome(shop, good, RETURNS)
        worker.stop()
        assert len(shop.place.take()) == 400, shop.logs()

    together({lane: make_workers(lane) for lane in lanes_here}, scenario)


HOSTILE: list[Any] = [
    1,
    "text",
    [],
    [["v", 1]],
    {},
    {"v": 1},
    {"v": "1"},
    {"v": True},
    {"v": -1},
    {"v": 1.5},
    {"v": 1, "run": "x" * 100_000},
]
BENT: list[tuple[str, Any]] = [
    ("run", None),
    ("run", "not-a-run"),
    ("run", "00000000-0000-4000-8000-000000000000"),
    ("claim", None),
    ("claim", "' OR 1=1 --"),
    ("claim", "\0"),
    ("claim", {"a": 1}),
    ("fence", "1"),
    ("fence", None),
    ("fence", -1),
    ("fence", 10**30),
    ("fence", 1.0),
    ("store", 5),
    ("store", None),
    ("namespace", ["default"]),
    ("namespace", "n" * 10_000),
]


@pytest.mark.parametrize(
    "lane",  # AMQP's own types let no such number into a header
    [Lane("prefork", "redis", "sqlite", "early"), Lane("gevent", "redis", "postgresql", "late")],
    ids=lane_name,
)
def test_no_header_harms_a_worker(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    bent, good = shop.order("work.note"), shop.order("work.note")
    claims = shop.claim()
    true = {
        "v": 1,
        "store": shop.store.check_schema().store_id,
        "namespace": "default",
        "run": claims[bent].run_id,
        "claim": claims[bent].claim_id,
        "fence": claims[bent].fence,
    }
    for raw in (*HOSTILE, *({**true, field: value} for field, value in BENT)):
        shop.send("work.note", headers={"sqlbeat": raw}, task_id=claims[bent].run_id)
    others = shop.send("work.note", headers={"sqlbeat": true})  # in another one's message
    newer = shop.send("work.note", headers={"sqlbeat": {**true, "v": 2}}, task_id=claims[bent].run_id)
    worker = shop.work(lane.pool).ready()
    plain = shop.send("work.note")
    shop.publish(claims[good])
    shop.wait_for_outcome(good)
    assert_outcome(shop, good, RETURNS)
    # One of the bent headers names another run, and so says nothing of this message.
    ordinary = {plain, others, claims[bent].run_id}
    wait_for(lambda: {line.run for line in shop.starts()} == {*ordinary, claims[good].run_id}, PATIENCE, shop.logs)
    worker.says("version 2")
    worker.stop()
    assert [message.headers["id"] for message in shop.place.take()] == [newer], "only who knows it may drop it"
    assert len(shop.starts()) == 4, shop.logs()
    assert [line.run for line in shop.starts() if line.attempt is not None] == [claims[good].run_id]
    assert_calm(worker)
    assert shop.states(bent) == ["claimed"]


def test_what_a_task_sends_on_with_its_own_headers_are_ordinary_messages(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        worker = shop.work(lane.pool).ready()
        names = [shop.order("work.pass_on"), shop.order("work.pass_on")]
        shop.dispatch()
        for name in names:
            assert_outcome(shop, name, RETURNS)
        shop.wait_for_line("ValueError", times=2)
        shop.wait_for_line("facts", times=2)
        worker.says("Received unregistered task", times=2)
        worker.stop()
        assert [line.more for line in shop.lines(what="facts")] == [
            {"known": False, "headers": ["celery_beat_task"]}
        ] * 2
        assert worker.log.count("task work.facts came with the sqlbeat header of another message") == 1
        assert [len(shop.attempts(name)) for name in names] == [1, 1], "what it has sent on is no concern of its run"
        assert shop.place.take() == []
        assert_calm(worker)

    together({lane: make_workers(lane) for lane in lanes()}, scenario)


@pytest.mark.parametrize("lane", lanes("prefork", "threads", "gevent", "solo"), ids=lane_name)
def test_messages_without_our_header_are_untouched(make_workers: MakeWorkers, lane: Lane) -> None:
    shop = make_workers(lane)
    worker = shop.work(lane.pool).ready()
    sent = [shop.send("work.facts") for _ in range(20)]
    failing = shop.send("work.fail")
    wait_for(lambda: len(shop.results()) == 21, PATIENCE, shop.logs)
    worker.stop()
    assert {line.run for line in shop.lines(what="facts") if not line.more["known"]} == set(sent)
    assert shop.results()[failing]["status"] == "FAILURE"
    assert shop.runs() == []


class Outage:
    """A worker whose way to the database is cut from the start.

    The test itself goes another way.
    """

    def __init__(self, shop: WorkerShop, lane: Lane) -> None:
        self.shop, self.wire = shop, Wire(shop.database_url)
        self.wire.cut()
        shop.write_app(lane, sqlbeat_database_url=self.wire.url)
        self.names = [shop.order("work.note") for _ in range(5)]
        self.claims: dict[str, Claim] = shop.dispatch()
        self.worker = shop.work(lane.pool).ready()
        self.plain = [shop.send("work.note") for _ in range(5)]
        wait_for(lambda: {line.run for line in shop.starts()} >= set(self.plain), PATIENCE, shop.logs)
        assert not shop.starts(*self.names)


WITHOUT_DATABASE = [
    ON_POSTGRESQL,
    Lane("threads", "redis", "postgresql", "late"),
    Lane("gevent", "rabbitmq", "postgresql", "early"),
    Lane("solo", "redis", "postgresql", "late"),
]


def test_without_a_database_messages_wait_and_others_run(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        outage = Outage(shop, lane)
        outage.wire.mend()
        shop.wait_for_outcome(*outage.names)
        for name in outage.names:
            assert_outcome(shop, name, RETURNS)
        outage.worker.stop()
        outage.wire.close()
        assert_calm(outage.worker)
        assert outage.worker.log.count("WARNING") < 60

    together({lane: make_workers(lane) for lane in WITHOUT_DATABASE}, scenario)


def test_while_the_database_is_away_other_messages_do_not_wait_behind_ours(make_workers: MakeWorkers) -> None:
    """Each of ours would else have the only slot for a second."""

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        wire = Wire(shop.database_url)
        wire.cut()
        shop.write_app(lane, sqlbeat_database_url=wire.url)
        names = [shop.order("work.note") for _ in range(30)]
        shop.dispatch()
        plain = shop.send("work.note")  # behind all of them
        worker = shop.work(lane.pool, concurrency=1).ready()
        began = time.time()
        wait_for(lambda: [line.run for line in shop.starts()] == [plain], PATIENCE, shop.logs)
        assert shop.starts()[0].at - began < 10, shop.logs()
        wire.mend()
        mended = time.time()
        shop.dispatch_until(lambda: all(shop.states(name) == ["success"] for name in names))
        assert shop.starts()[-1].at - mended < 20, "each begins as soon as the one before has ended"
        worker.stop()
        wire.close()
        assert_calm(worker)

    together({lane: make_workers(lane) for lane in WITHOUT_DATABASE}, scenario)


def test_messages_that_wait_for_the_database_go_back_at_shutdown(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        outage = Outage(shop, lane)
        assert outage.worker.stop() < PATIENCE
        outage.wire.close()
        left = {message.headers["id"] for message in shop.place.take()}
        assert left == {claim.run_id for claim in outage.claims.values()}, shop.logs()
        assert not shop.starts(*outage.names)
        assert_calm(outage.worker)

    together({lane: make_workers(lane) for lane in WITHOUT_DATABASE}, scenario)


def test_a_prefetched_message_holds_no_run_lease(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, worker_prefetch_multiplier=10)
        first = shop.order("work.sleep", 4)
        worker = shop.work(lane.pool, concurrency=1).ready()
        shop.dispatch()
        shop.wait_for_start(first)
        waiting = [shop.order("work.note") for _ in range(3)]
        later = shop.order("work.note", options={"countdown": 2})
        claims = shop.dispatch()
        for claim in claims.values():
            worker.says(claim.run_id) if lane.pool != "solo" else None
        assert {state for name in (*waiting, later) for state in shop.states(name)} == {"claimed"}
        shop.wait_for_outcome(first, *waiting, later)
        (end,) = shop.lines(first, what="end")
        for name in waiting:
            run = assert_outcome(shop, name, RETURNS)
            assert run.started_at is not None and run.started_at.timestamp() >= end.at - 0.05
        run = assert_outcome(shop, later, RETURNS)
        assert run.started_at is not None and run.published_at is not None
        assert (run.started_at - run.published_at).total_seconds() > 1.5
        worker.stop()

    together(
        {
            lane: make_workers(lane)
            for lane in (ON_POSTGRESQL, Lane("threads", "redis", "sqlite", "early"), WITHOUT_DATABASE[3])
        },
        scenario,
    )


LIMITED = [
    ON_POSTGRESQL,
    Lane("threads", "redis", "sqlite", "early"),
    Lane("gevent", "redis", "postgresql", "late"),
]
BETWEEN = 5.0  # seconds between two tasks under the rate limit


def test_a_rate_limited_message_takes_its_lease_when_its_turn_comes(make_workers: MakeWorkers) -> None:
    """The limit holds a message back for longer than its lease would last.

    At the end of the worker it goes back.
    """

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        shop.write_app(lane, task_annotations={"work.note": {"rate_limit": f"{60 / BETWEEN:g}/m"}})
        names = [shop.order("work.note") for _ in range(5)]
        worker = shop.work(lane.pool).ready()
        wait_for(shop.worker_nodes, PATIENCE, shop.logs)
        (node,) = shop.worker_nodes()
        sent_at = shop.now()
        claims = shop.dispatch()
        for claim in claims.values():
            worker.says(claim.run_id)  # received
        wait_for(lambda: len(shop.starts()) == 2, PATIENCE, shop.logs)
        waiting = [name for name in names if not shop.starts(name)]
        for name in waiting:
            (run,) = shop.attempts(name)
            if run.state == "claimed":  # a third one may begin at this moment
                assert run.started_at is None and shop.job(name).locked_by != node.node_id, run
        wait_for(lambda: len(shop.starts()) == 3, PATIENCE, shop.logs)
        assert worker.stop() < PATIENCE
        assert_calm(worker)
        begun = [line.job for line in shop.starts() if line.job]
        for number, name in enumerate(begun):
            run = assert_outcome(shop, name, RETURNS)
            assert run.started_at is not None
            assert (run.started_at - sent_at).total_seconds() >= number * BETWEEN, shop.logs()
        left = set(names) - set(begun)
        assert left and {state for name in left for state in shop.states(name)} <= {"claimed", "scheduled"}
        assert {message.headers["id"] for message in shop.place.take()} == {claims[name].run_id for name in left}

    together({lane: make_workers(lane) for lane in LIMITED}, scenario)


def test_what_was_fired_and_forgotten_is_recorded_all_the_same(make_workers: MakeWorkers) -> None:
    def scenario(shop: WorkerShop, lane: Lane) -> None:
        overlapping: dict[str, Any] = {"policies": {"overlap": "allow"}}
        good = shop.order("work.note", **overlapping)
        bad = shop.order("work.fail", policies={"overlap": "allow", "max_retries": 0})
        again = shop.order("work.fail_until", 2, **overlapping)
        unleased = shop.order("work.note")
        claims = shop.claim()
        shop.publish(*(claims[name] for name in (good, bad, again)))
        shop.publish(claims[unleased], mark=False)
        assert BeatView(shop.store, "beat of the test").mark_dispatched([claims[unleased]]).done
        assert shop.states(good) == shop.states(unleased) == ["dispatched"]
        next_slots = {name: shop.job(name).next_run_time for name in claims}
        assert all(at > shop.now() for at in next_slots.values())
        worker = shop.work(lane.pool).ready()
        shop.wait_for_states(good, "success")
        (dead,) = shop.wait_for_states(bad, "dlq")
        assert "no luck today" in str(dead.error)
        shop.wait_for_states(unleased, "success")
        shop.dispatch_until(lambda: shop.states(again)[-1] == "success")
        assert shop.states(again) == ["retry", "success"]
        assert len(shop.starts()) == 5
        worker.stop()
        assert {name: shop.job(name).next_run_time for name in claims} == next_slots

    together({lane: make_workers(lane) for lane in lanes("prefork", "threads")[:3]}, scenario)


def test_a_message_of_an_overlapping_run_starts_once(make_workers: MakeWorkers) -> None:
    shop = make_workers(ON_POSTGRESQL)
    names = [shop.order("work.sleep", 0.5, policies={"overlap": "allow"}) for _ in range(10)]
    claims = shop.claim()
    shop.publish(*claims.values())
    shop.publish(*claims.values(), mark=False)
    with shop.events() as events:
        workers = [shop.work("prefork").ready(), shop.work("threads").ready()]
        wait_for(lambda: are_rejected(events, *(one.run_id for one in claims.values())), PATIENCE, shop.logs)
        for name in names:
            shop.wait_for_states(name, "success")
        for worker in workers:
            worker.stop()
    assert len(shop.starts()) == 10


@pytest.mark.parametrize("redelivers", [True, False], ids=["redis", "rabbitmq"])
def test_a_task_of_several_leases_runs_once_however_often_its_message_comes(
    make_workers: MakeWorkers, redelivers: bool
) -> None:
    """On Redis an unacknowledged message comes again every two seconds, for twelve."""
    seconds, lease = 12.0, 4.0
    among = (*LANES, Lane("threads", "redis", "sqlite", "late"))
    chosen = [lane for lane in lanes(among=among) if (lane.broker == "redis") == redelivers]
    short: dict[str, Any] = {
        "sqlbeat_lock_timeout": lease,
        "sqlbeat_heartbeat_interval": HEARTBEAT,
        "sqlbeat_heartbeat_failures": 2,
    }

    def scenario(shop: WorkerShop, lane: Lane) -> None:
        name = shop.order("work.sleep", seconds)
        held = shop.order("work.hold_gil", seconds) if lane.pool == "prefork" else None
        names = [name, held] if held else [name]
        with shop.events() as events:
            workers = [shop.work(lane.pool) for _ in range(2 if redelivers else 1)]
            for worker in workers:
                worker.ready()
            claims = shop.dispatch()
            for each in names:
                shop.wait_for_start(each)
            until = time.monotonic() + seconds - 2
            while time.monotonic() < until:
                assert shop.reap() == set(), shop.logs()
                assert all(0 < read_lease(shop, each) <= lease for each in names), shop.logs()
                time.sleep(0.25)
            shop.wait_for_outcome(*names)
            for each in names:
                assert_outcome(shop, each, RETURNS)
                assert len(shop.starts(each)) == 1, shop.logs()
            if redelivers and lane.late and lane.pool in ("prefork", "threads"):  # kombu's event loop brings them back
                wait_for(lambda: are_rejected(events, claims[name].run_id), PATIENCE, shop.logs)
            for worker in workers:
                worker.stop()
                assert_calm(worker)
        assert shop.place.take() == []

    shops = {lane: make_workers(lane) for lane in chosen}
    often = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    for lane, shop in shops.items():
        shop.write_app(lane, **short, broker_transport_options=often if redelivers else {})
    together(shops, scenario)
