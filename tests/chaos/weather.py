"""One storm over a shop of three beats and three workers, and the history that it leaves."""

import contextlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tests.chaos import databases, judge, kinds, one_off_rules, rows, submitters, witnesses
from tests.chaos.case_rules import a_backlog_is_not_dropped, in_doubt
from tests.chaos.guests import Guest
from tests.chaos.history import History, Limits
from tests.chaos.kinds import LEASE
from tests.chaos.mischief import Hangs, Rebirths
from tests.chaos.premises import premises
from tests.chaos.rules import have_begun, one_outcome_for_each_slot
from tests.chaos.storm import Member, Mischief, Storm
from tests.support.beats import Beat, Shop, wait_for
from tests.support.brokers import Place, Wire
from tests.support.private_servers import (
    PrivateServer,
    dies_with_us,
    private_rabbitmq,
    private_redis,
)
from tests.support.views import NodeView

AFTERMATH = 180.0  # seconds; everything is well again, and what is due must get its outcome
WATCHED = 15.0  # seconds without another fault after each kill that is timed
TOGETHER = 24.0  # seconds in which a plain worker shares a queue, and nothing else goes wrong
LIMITS = Limits(dispatch=3.0 + 5.0, lease=LEASE + 5.0, queued=15 * LEASE)  # a busy machine needs more
# The bodies of all jobs take about 20 slots. Whoever is killed, the others have room for what it
# ran: how long a copy then waits for a slot says nothing of the fail-over.
BEATS, SUBMITTERS, POOLS = 3, 2, {"prefork": 4, "threads": 16, "gevent": 20}
SHARING = "threads"  # the pool of the worker that shares a queue with a plain one
LATE = {"prefork": 2, "threads": 3}  # workers of the queue that nobody has consumed until they come
BROKERS = {"redis": private_redis, "rabbitmq": private_rabbitmq}


class Report(NamedTuple):
    """What a run came to."""

    seed: int
    faults: Counter[str]
    bodies: int
    runs: Counter[str]
    cases: Counter[str]
    """How often what some rules are about came to pass."""
    broken: list[str]
    folder: Path


def run(
    seconds: float, database: str, broker: str, seed: int, folder: Path, tell: Callable[[str], None] = print
) -> Report:
    """Let a storm rage for so long; returns what it did, and which promises were broken."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(premises())
        servers: dict[str, PrivateServer] = {broker: stack.enter_context(BROKERS[broker]())}
        servers["results"] = stack.enter_context(private_redis())
        url, disk = databases.open_one(stack, database, servers, folder, tell)
        place = Place(broker, servers[broker].url)
        kinds.add_queues(place)
        shop = Shop(folder, url, place)
        shop.launcher = dies_with_us()
        stack.callback(shop.close)
        shop.store.migrate()
        shop.write(kinds.entries(place), extra=kinds.SHOP, result_backend=servers["results"].url, **kinds.SETTINGS)
        reborn = kinds.reborn(has_sql=database != "redis")
        if "by hand" not in reborn.values():
            tell(f"no job is deleted by hand, but by the package: {database} has no SQL")
        rebirths = Rebirths(shop, reborn, kinds.REBORN_EVERY, kinds.REBORN_SECONDS)
        rebirths.define_all()
        hangs = Hangs(shop.folder / "witness.log", "bounded-")
        ends = {"broker": servers[broker].url} | ({"database": url} if "database" in servers else {})
        beats = [_beat(shop, _wires(stack, ends)) for _ in range(BEATS)]
        workers = [_worker(shop, _wires(stack, ends), pool, slots) for pool, slots in POOLS.items()]
        mischief: dict[str, Mischief] = {
            "job deleted and defined again": rebirths.delete_one,
            "child stopped inside its task": lambda _random, _later: hangs.stop_one(),
        }
        storm = Storm(seed, workers, servers, disk, _guest(shop, servers[broker].url), mischief)
        stack.callback(storm.kill)
        # What beats send before a queue is known to keep leases runs beside what they send later.
        wait_for(lambda: _has_workers(shop, len(workers)), AFTERMATH, shop.logs)
        for member in beats:
            storm.join(member)
        for number in range(SUBMITTERS):
            storm.join(_submitter(shop, number, _wires(stack, ends)))
        storm.rage(seconds, tell)
        (shop.folder / submitters.ENOUGH).touch()
        scene = Scene(shop, storm, hangs, rebirths)
        scene.settle(shop.now())
        _serve_backlog(scene, ends)
        _play_what_needs_calm(scene, tell)
        for kind in ("worker", "beat"):
            wait_for(lambda: storm.is_manned, AFTERMATH, shop.logs)
            time.sleep(WATCHED)  # a beat that was just born takes no leases yet
            storm.kill_one(kind, tell)
            time.sleep(WATCHED)
            storm.calm()
        until = shop.now()
        scene.settle(until, has_late_workers=True)
        storm.stop()
        seen, submitted = scene.history(until), scene.one_offs(until)
        strangers = [*storm.strangers, *rows.hidden(shop)]
        broken = [*judge.broken_promises(seen), *one_off_rules.broken_promises(submitted)]
        broken += [f"not as told: {text}" for text in strangers]
        states = Counter(each.state for each in [*seen.runs, *submitted.runs.values()])
        cases = Counter({**scene.cases(seen), **one_off_rules.cases(submitted)})
        bodies = len(seen.bodies) + sum(map(len, submitted.bodies.values()))
        return Report(seed, storm.faults, bodies, states, cases, broken, folder)


def _serve_backlog(scene: "Scene", ends: Mapping[str, str]) -> None:
    wires = {name: Wire(url) for name, url in ends.items()}
    for pool, slots in LATE.items():
        scene.storm.join(_worker(scene.shop, wires, pool, slots, "late", kinds.BACKLOG))


def _play_what_needs_calm(scene: "Scene", tell: Callable[[str], None]) -> None:
    """Let a plain worker share a queue, and time the stop of a frozen child."""
    tell("all is well: workers come to the backlog, and a plain one to a shared queue")
    guest = scene.storm.guest
    assert guest is not None
    guest.comes()
    scene.storm.pass_time(TOGETHER / 2)
    scene.storm.restart(scene.storm.shared)  # a worker that keeps leases comes anew beside it
    end = time.monotonic() + TOGETHER / 2
    has_hung = False
    while time.monotonic() < end or not (has_hung or time.monotonic() > end + TOGETHER):
        has_hung = has_hung or scene.hangs.stop_one(is_timed=True)
        scene.storm.pass_time(0.1)
    tell("all is well: a child was stopped inside its task, and timed" if has_hung else "no child could be stopped")
    guest.goes()


class Scene(NamedTuple):
    """A shop in a storm, and what is known of both."""

    shop: Shop
    storm: Storm
    hangs: Hangs
    rebirths: Rebirths

    def settle(self, until: datetime, has_late_workers: bool = False) -> None:
        """Wait until everything that was due has its outcome, and until all jobs go on.

        What is missing then is found by the rules.
        """
        end = time.monotonic() + AFTERMATH
        while time.monotonic() < end:
            self.storm.calm()  # a child's death may have ended a process just now
            seen = self.history(until)
            missing = [*one_outcome_for_each_slot(seen), *one_off_rules.missing(self.one_offs(until))]
            if not missing and not (has_late_workers and list(a_backlog_is_not_dropped(seen))) and have_begun(seen):
                return
            time.sleep(1.0)

    def _lines(self, name: str) -> list[str]:
        file = self.shop.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def one_offs(self, until: datetime) -> one_off_rules.OneOffs:
        """Return what is to be judged of what was submitted."""
        bodies = [body for body in witnesses.read(self._lines("witness.log")) if body.job == one_off_rules.JOB]
        runs = [run for run in rows.read(self.shop) if run.kind == "one_off"]
        return one_off_rules.of(self.history(until), one_off_rules.read(self._lines(submitters.LEDGER)), runs, bodies)

    def history(self, until: datetime) -> History:
        """Return what is to be judged of jobs."""
        storm = self.storm
        bodies = [body for body in witnesses.read(self._lines("witness.log")) if body.job != one_off_rules.JOB]
        clock = time.monotonic() - self.shop.now().timestamp()
        return History(
            bodies,
            [run for run in rows.read(self.shop) if run.kind != "one_off"],
            kinds.jobs(self.rebirths.jobs),
            storm.freezes,
            until,
            kinds.MAX_LOST,
            clock,
            storm.kills,
            LIMITS._replace(unacknowledged=kinds.VISIBILITY if self.shop.place.kind == "redis" else math.inf),
            self.hangs.found,
            storm.doubts,
            storm.child_kills,
            {run for beat in self.shop.beats for run in witnesses.withheld(beat.events("noted"))},
        )

    def cases(self, seen: History) -> Mapping[str, int]:
        """How often what some rules are about came to pass."""
        left = [run for run in seen.runs if run.reason == "left to the strategy of its task"]
        plain = [body for body in seen.bodies if not body.leased]
        return {
            "runs left to a strategy": len(left),
            "bodies of a plain worker": len(plain),
            "of these in doubt": sum(in_doubt(body, seen) for body in plain),
            "jobs defined again": self.rebirths.count,
            "results not stored": sum(run.reason == "result not stored" for run in seen.runs),
            "children stopped": len(seen.hangs),
            "copies withheld": len(seen.withheld),
            "backlog": sum(seen.jobs[run.job].is_backlog for run in seen.runs),
        }


def _has_workers(shop: Shop, count: int) -> bool:
    return sum(node.kind == "worker" for node in NodeView(shop.store).seen(AFTERMATH)) >= count


def _beat(shop: Shop, wires: Mapping[str, Wire]) -> Member:
    return Member("beat", lambda: shop.start(**_environ(wires)), wires)


def _submitter(shop: Shop, number: int, wires: Mapping[str, Wire]) -> Member:
    """Return a process of the shop that submits one-offs and cancels some."""
    log = shop.folder / f"submitter-{number}.log"
    return Member(
        "submitter", lambda: Beat(shop.run(log, "-m", "tests.chaos.submitters", **_environ(wires)), log), wires
    )


def _worker(
    shop: Shop, wires: Mapping[str, Wire], pool: str, slots: int, kind: str = "", queue: str = "default"
) -> Member:
    """Of one queue; one of the workers that are there at first shares another with a plain one."""
    numbers = itertools.count()
    shares = not kind and pool == SHARING
    queues = [queue, *([kinds.SHARED] if shares else [])]

    def start() -> Beat:
        return _work(shop, f"{kind}{pool}-{next(numbers)}", pool, slots, queues, _environ(wires))

    return Member(f"{kind} worker".strip(), start, wires, shares)


def _guest(shop: Shop, url: str) -> Guest:
    """On a line that nobody cuts.

    Without the extension by its environment, and by what is installed, in turn.
    """
    numbers = itertools.count()

    def start() -> Beat:
        number = next(numbers)
        environ = {"CHAOS_PLAIN": "without the extension", "CHAOS_BROKER": url}
        if number % 2:
            environ |= {"CHAOS_PLAIN": "disabled", "SQLBEAT_DISABLE": "1"}
        return _work(shop, f"plain-{number}", "solo", 1, [kinds.SHARED], environ)

    return Guest(start)


def _work(shop: Shop, name: str, pool: str, slots: int, queues: Sequence[str], environ: Mapping[str, str]) -> Beat:
    log = shop.folder / f"worker-{name}.log"
    options = ["--pool", pool, "--concurrency", str(slots), "--hostname", f"{name}@%h"]
    options += ["--queues", ",".join(shop.place.queue(queue) for queue in queues)]
    return Beat(shop.spawn(log, "worker", *options, "--without-mingle", "--without-gossip", **environ), log)


def _environ(wires: Mapping[str, Wire]) -> dict[str, str]:
    found = {"CHAOS_BROKER": wires["broker"].url}
    if "database" in wires:
        found["SQLBEAT_DATABASE_URL"] = wires["database"].url
    return found


def _wires(stack: contextlib.ExitStack, ends: Mapping[str, str]) -> dict[str, Wire]:
    """Lines of one process's own."""
    found = {name: Wire(url) for name, url in ends.items()}
    for wire in found.values():
        stack.callback(wire.close)
    return found
