"""What goes wrong, and when: drawn from the seed before all begins, so that any part of it can be left out."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from celery_sqlbeat.lifecycle import Ending
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.store import Store
from tests.simulation.beats import Host
from tests.simulation.broker import QUEUE, Message
from tests.simulation.operators import ACTIONS
from tests.simulation.rows import instant

if TYPE_CHECKING:
    from tests.simulation.world import World

STORMY_SECONDS = 900.0  # how long things go wrong
_MOST_BOUNDARIES = 25  # a fault that waits for a boundary between statements waits for one of so many


class Fault(NamedTuple):
    """One thing that goes wrong. The three numbers between 0 and 1 say where and how much."""

    number: int
    at: float
    kind: str
    which: float
    how: float
    much: float


def schedule(seed: int) -> list[Fault]:
    """Everything that goes wrong in one simulation."""
    rng = Random(f"{seed}/faults")
    mean = rng.choice([4.0, 10.0, 25.0, 80.0])
    kinds = list(KINDS)
    # Some simulations have much of a few kinds: rare combinations need frequent parts.
    favoured = rng.sample(kinds, rng.randint(2, len(kinds))) if rng.random() < 0.7 else kinds
    at = 0.0
    found: list[Fault] = []
    while True:
        at += rng.expovariate(1.0 / mean)
        if at > STORMY_SECONDS:
            return found
        found.append(Fault(len(found), at, rng.choice(favoured), rng.random(), rng.random(), rng.random()))


def _host(world: "World", fault: Fault) -> Host | None:
    hosts = world.hosts()
    return hosts[int(fault.which * len(hosts))] if hosts else None


def _seconds(world: "World", fault: Fault) -> float:
    """Mostly short of a lease, sometimes far beyond it."""
    return float(world.settings.lock_timeout * 3.0 * fault.much**2 + 0.1)


def _at_boundary(world: "World", fault: Fault, act: Callable[[Host], object]) -> None:
    host = _host(world, fault)
    if host is not None:
        host.link.arm(int(fault.how * _MOST_BOUNDARIES), lambda _: act(host))


def crash(world: "World", fault: Fault) -> None:
    """A process dies between two statements."""
    _at_boundary(world, fault, lambda host: host.kill())


def kill(world: "World", fault: Fault) -> None:
    """A process dies at any moment."""
    host = _host(world, fault)
    if host is not None:
        host.kill()


def freeze(world: "World", fault: Fault) -> None:
    """A process stands still between two statements."""
    _at_boundary(world, fault, lambda host: host.freeze(_seconds(world, fault)))


def lose(world: "World", fault: Fault) -> None:
    """A connection breaks: before a commit, so that it is undone, or after it, so that nobody hears of it."""
    _at_boundary(world, fault, lambda host: host.link.lost())


def _outage_seconds(world: "World", fault: Fault) -> float:
    """Of any length, or about as long as a worker goes on without its heartbeat."""
    if fault.how < 0.5:
        return _seconds(world, fault)
    return float(world.settings.lock_timeout * (0.6 + 0.5 * fault.much))


def cut(world: "World", fault: Fault) -> None:
    """One process does not reach the database for a while."""
    host = _host(world, fault)
    if host is not None:
        host.link.cut_until = world.hub.now + _outage_seconds(world, fault)


def database_away(world: "World", fault: Fault) -> None:
    """Nobody reaches the database for a while; it refuses, or it hangs."""
    world.server.hangs = fault.which < 0.3
    world.server.away_until = world.hub.now + _outage_seconds(world, fault)


def slow(world: "World", fault: Fault) -> None:
    """Every statement takes long."""
    world.server.slow_until = world.hub.now + _seconds(world, fault)


def jump(world: "World", fault: Fault) -> None:
    """The server's clock is set."""
    seconds = 120.0 * fault.much**2 * (1 if fault.much < 0.65 else -1)

    def act(_: Host) -> None:
        world.server.jump(seconds)
        world.ledger.jumps.append((world.hub.now, seconds))

    if fault.how < 0.5:
        act(world.operator)
    else:
        # Not within a transaction, which has its one instant already.
        _at_boundary(world, fault, lambda host: world.hub.after(0.0, lambda: act(host)))


def skew(world: "World", fault: Fault) -> None:
    """The clock of a host is set."""
    host = _host(world, fault)
    if host is not None:
        host.skew = (fault.how - 0.5) * 7200.0


def broker_away(world: "World", fault: Fault) -> None:
    """Nobody reaches the broker for a while."""
    world.broker.go_away(_seconds(world, fault))


def broker_loses(world: "World", fault: Fault) -> None:
    """Messages are lost before they are confirmed, and confirmations are lost after that."""
    world.broker.loses_until = world.hub.now + _seconds(world, fault)


def broker_swallows(world: "World", fault: Fault) -> None:
    """Messages that were confirmed are lost, for longer than a slot waits for its start."""
    world.broker.swallows_until = world.hub.now + 10.0 * _seconds(world, fault)


def broker_doubles(world: "World", fault: Fault) -> None:
    """Messages are delivered twice."""
    world.broker.doubles_until = world.hub.now + _seconds(world, fault)


def broker_delays(world: "World", fault: Fault) -> None:
    """Messages are late, and out of order."""
    world.broker.delays_until = world.hub.now + _seconds(world, fault)


def redeliver(world: "World", fault: Fault) -> None:
    """A worker loses its connection to the broker, which gives its messages to others while they are at work."""
    if world.broker.consumers:
        world.broker.lose(world.broker.consumers[int(fault.which * len(world.broker.consumers))])


def end(world: "World", fault: Fault) -> None:
    """A process is asked to end."""
    host = _host(world, fault)
    if host is not None:
        host.ask_to_end()


def forge(world: "World", fault: Fault) -> None:
    """Somebody knows everything about a run but its claim id, or has it with the fence of another time."""
    held = [job for job in world.ledger.jobs.values() if job.locked_by is not None]
    if not held:
        return
    if fault.how < 0.4:
        held = [job for job in held if job.started_retry is None] or held  # before its own message comes
    job = held[int(fault.which * len(held))]
    run = world.ledger.runs.get(job.run_id or "")
    if run is None:
        return
    fence, claim_id = run.fence, run.claim_id or ""
    if fault.much < 0.5:
        claim_id = world.operator.ids.claim_ids(1)[0]
    else:
        fence -= 1
    if fault.how < 0.4:
        message = Message(0, run.run_id, claim_id, fence, QUEUE, 0, None, "", world.namespace, run.job_name)
        world.broker.put(message)
        return
    forged = StartedRun(
        run.run_id,
        claim_id,
        fence,
        run.job_id,
        run.job_name,
        run.kind,
        instant(run.scheduled_for),
        run.attempt,
        run.lease_seconds,
        run.max_retries,
        run.failures,
        run.lost_leases,
        run.exclusive,
        "",
    )
    store = Store(world.operator.database(), world.namespace).for_worker("impostor")
    if fault.how < 0.7:
        world.operator.attempt(lambda: store.finish([(forged, Ending("success"))]))
    else:
        world.operator.attempt(lambda: store.extend([(forged, 60.0)]))


def operate(world: "World", fault: Fault) -> None:
    """An operator does something."""
    jobs = sorted(world.ledger.jobs.values(), key=lambda job: job.job_name)
    if jobs:
        action = ACTIONS[int(fault.how * len(ACTIONS))]
        job = jobs[int(fault.which * len(jobs))]
        world.operator.attempt(lambda: action(world.operator, job, fault.much))


KINDS: dict[str, Callable[["World", Fault], None]] = {
    one.__name__: one
    for one in (
        crash,
        kill,
        freeze,
        lose,
        cut,
        database_away,
        slow,
        jump,
        skew,
        broker_away,
        broker_loses,
        broker_swallows,
        broker_doubles,
        broker_delays,
        redeliver,
        end,
        forge,
        operate,
    )
}
