"""What goes wrong, and when.

Drawn from the seed before all begins, so that any part of it can be left out.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.lifecycle import Ending
from celery_sqlbeat.store.sql.store import SqlStore
from tests.simulation.beats import Host
from tests.simulation.broker import QUEUE, Message
from tests.simulation.hub import Process
from tests.simulation.operators import ACTIONS
from tests.simulation.plain import Plain
from tests.simulation.rows import instant
from tests.support.views import WorkerView

if TYPE_CHECKING:
    from tests.simulation.world import World

STORMY_SECONDS = 900.0  # how long things go wrong
_MOST_PLAINS = 3  # at one time
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
            return found + _plain_faults(rng, len(found))
        found.append(Fault(len(found), at, rng.choice(favoured), rng.random(), rng.random(), rng.random()))


def _plain_faults(rng: Random, first: int) -> list[Fault]:
    """Plain workers come and go in each world that has them, whatever else goes wrong there."""
    kinds = [plain_comes.__name__, plain_goes.__name__]
    count = rng.choice([0, 10, 40])
    return [
        Fault(first + at, STORMY_SECONDS * rng.random(), rng.choice(kinds), rng.random(), rng.random(), rng.random())
        for at in range(count)
    ]


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
    """Kill a process between two statements."""
    _at_boundary(world, fault, lambda host: host.kill())


def kill(world: "World", fault: Fault) -> None:
    """Kill a process at any moment."""
    host = _host(world, fault)
    if host is not None:
        host.kill()


def freeze(world: "World", fault: Fault) -> None:
    """Freeze a process between two statements."""
    _at_boundary(world, fault, lambda host: host.freeze(_seconds(world, fault)))


def lose(world: "World", fault: Fault) -> None:
    """Break a connection, before a commit (undone) or after it (nobody hears of it)."""
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
    """Set the server's clock."""
    seconds = 120.0 * fault.much**2 * (1 if fault.much < 0.65 else -1)

    def act(_: Host) -> None:
        world.server.jump(seconds)
        world.ledger.jumps.append((world.hub.now, seconds))

    if fault.how < 0.5:
        act(world.operator)
    else:
        # Not within a transaction, which has its one instant already.
        _at_boundary(world, fault, lambda host: world.hub.after(0.0, lambda: act(host)))


def jump_in_flight(world: "World", fault: Fault) -> None:
    """Set the server's clock forward while a beat publishes, and freeze that beat for a while."""
    timeout = world.settings.dispatch_timeout
    seconds = timeout + 60.0 * fault.much

    def act(beat: Process) -> None:
        world.server.jump(seconds)
        world.ledger.jumps.append((world.hub.now, seconds))
        beat.freeze(0.6 * fault.how * timeout)

    world.broker.in_flight.append(act)


def skew(world: "World", fault: Fault) -> None:
    """Set the clock of a host."""
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
    """Cut a worker off from the broker, which gives the messages that it works on to others."""
    if world.broker.consumers:
        world.broker.lose(world.broker.consumers[int(fault.which * len(world.broker.consumers))])


def end(world: "World", fault: Fault) -> None:
    """Ask a process to end."""
    host = _host(world, fault)
    if host is not None:
        host.ask_to_end()


def forge(world: "World", fault: Fault) -> None:
    """Forge an outcome that lacks only the claim id, or has it with another fence."""
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
    store = WorkerView(SqlStore(world.operator.database(), world.namespace), "impostor")
    if fault.how < 0.7:
        world.operator.attempt(lambda: store.finish([(forged, Ending("success"))]))
    else:
        world.operator.attempt(lambda: store.extend([(forged, 60.0)]))


def operate(world: "World", fault: Fault) -> None:
    """Do something as an operator."""
    jobs = sorted(world.ledger.jobs.values(), key=lambda job: job.job_name)
    if jobs:
        action = ACTIONS[int(fault.how * len(ACTIONS))]
        job = jobs[int(fault.which * len(jobs))]
        world.operator.attempt(lambda: action(world.operator, job, fault.much))


def _plain(world: "World", fault: Fault) -> Plain | None:
    return world.plains[int(fault.which * len(world.plains))] if world.plains else None


def plain_comes(world: "World", fault: Fault) -> None:
    """Start a worker without the extension: a roll-back, a forgotten machine."""
    if world.has_plains and len(world.plains) < _MOST_PLAINS:
        world.add_plain()


def plain_goes(world: "World", fault: Fault) -> None:
    """End a worker without the extension in order, or kill it."""
    plain = _plain(world, fault)
    if plain is not None:
        plain.leave() if fault.how < 0.5 else plain.kill()


def plain_freezes(world: "World", fault: Fault) -> None:
    """Freeze a worker without the extension."""
    plain = _plain(world, fault)
    if plain is not None:
        plain.freeze(_seconds(world, fault))


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
        jump_in_flight,
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
        plain_comes,
        plain_goes,
        plain_freezes,
    )
}
