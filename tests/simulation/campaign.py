"""Run one simulated world after another, and tell shortly of one in which an invariant breaks."""

import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tests.simulation.faults import schedule
from tests.simulation.ledger import Violation
from tests.simulation.world import World

MOST_STEPS = 1_000_000  # of one world; no world has as many
_LINES = 60  # of a trace
_SHORTEN_SECONDS = 60.0  # after that a trace is short enough


class Found(NamedTuple):
    """A world in which an invariant does not hold, and what is needed to see it again."""

    seed: int
    steps: int
    only: tuple[int, ...] | None
    """The faults that are needed; None: all of them."""
    invariant: str
    text: str


class Lived(NamedTuple):
    """What became of one world."""

    seed: int
    steps: int
    counts: Counter[str]
    found: Found | None


def live(seed: int, steps: int = MOST_STEPS, only: Collection[int] | None = None) -> Lived:
    """Live through one world."""
    world = World(seed, only)
    violation = world.run(steps)
    world.close()
    if violation is None and world.ledger.steps > MOST_STEPS:
        violation = Violation("liveness", f"it has not ended after {MOST_STEPS} steps", None)
    return Lived(seed, world.ledger.steps, Counter(world.ledger.counts), _found(world, only, violation))


def _found(world: World, only: Collection[int] | None, violation: Violation | None) -> Found | None:
    if violation is None:
        return None
    faults = None if only is None else tuple(sorted(only))
    return Found(world.seed, world.ledger.steps, faults, violation.invariant, violation.text)


def worlds(seed: int, steps: int, processes: int) -> Iterator[Lived]:
    """Run worlds from this seed on, until so many steps are done or an invariant does not hold."""
    if processes <= 1:
        yield from _until(map(live, itertools.count(seed)), steps)
        return
    # Each world in a new greenlet hub, but all in a few processes: to start one takes longer than a
    # world.
    with multiprocessing.get_context("forkserver").Pool(processes) as pool:
        seeds = itertools.count(seed)
        waiting = [pool.apply_async(live, (next(seeds),)) for _ in range(2 * processes)]

        def in_turn() -> Iterator[Lived]:
            while True:
                yield waiting.pop(0).get()
                waiting.append(pool.apply_async(live, (next(seeds),)))

        yield from _until(in_turn(), steps)


def _until(lived: Iterator[Lived], steps: int) -> Iterator[Lived]:
    done = 0
    for one in lived:
        yield one
        done += one.steps
        if done >= steps or one.found is not None:
            return


def shortened(found: Found) -> Found:
    """Return the same broken invariant with as few of the faults as a minute finds."""
    deadline = time.monotonic() + _SHORTEN_SECONDS
    best = found
    needed = list(found.only if found.only is not None else [fault.number for fault in schedule(found.seed)])
    alone = live(found.seed, MOST_STEPS, ()).found
    if alone is not None and alone.invariant == found.invariant:
        return alone
    pieces = 2
    while needed and time.monotonic() < deadline:
        size = max(1, len(needed) // pieces)
        for first in range(0, len(needed), size):
            fewer = needed[:first] + needed[first + size :]
            again = live(found.seed, MOST_STEPS, fewer).found
            if again is not None and again.invariant == found.invariant:
                best, needed, pieces = again, fewer, max(2, pieces - 1)
                break
            if time.monotonic() > deadline:
                break
        else:
            if size == 1:
                break
            pieces = min(len(needed), 2 * pieces)
    return best


def story(found: Found) -> Iterator[str]:
    """Yield what happened, and how to see it again."""
    world = World(found.seed, found.only)
    violation = world.run(found.steps)
    world.close()
    assert violation is not None, "a simulation must happen again"
    yield from world.ledger.trace(violation.job, _LINES)
    yield f"{found.invariant}: {found.text}"
    yield f"again: make simulate SEED={found.seed} STEPS={found.steps}{_only(found)}"


def _only(found: Found) -> str:
    return "" if found.only is None else f" ONLY={','.join(map(str, found.only)) or 'none'}"
