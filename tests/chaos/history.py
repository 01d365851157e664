"""Whether a history keeps the promises: judges what bodies wrote down and what stands in JobRuns. Knows nothing else.

Independent of the code under test on purpose: it imports none of it, and has its own idea of what may follow what.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.witnesses import Body

_A_MOMENT = 0.3  # seconds; between the last sign of life and the record of the end lie two clocks and a busy machine
OUTCOMES = {"success", "dlq", "dispatched", "cancelled", "skipped"}


class Run(NamedTuple):
    """A row of JobRuns."""

    run: str
    job: str
    kind: str
    slot: datetime
    last_slot: datetime | None
    slots: int
    attempt: int
    state: str
    reason: str | None
    fence: int
    failures: int
    lost_leases: int
    finished: datetime | None = None
    """When its end was recorded, by the server's clock."""


class Job(NamedTuple):
    """What is known of a job from its definition alone."""

    every: float
    """Seconds; its slots lie on a grid."""
    exclusive: bool
    max_retries: int
    always_fails: bool = False


class Freeze(NamedTuple):
    """A time in which a worker, or its main process alone, stood still: what it ran may overlap its successor."""

    process: int
    since: float
    until: float


class Kill(NamedTuple):
    """A process killed while everything else was well."""

    process: int
    is_beat: bool
    at: float


class Limits(NamedTuple):
    """How long a fail-over may take, in seconds."""

    dispatch: float
    """Until others carry on with the jobs of a killed beat."""
    lease: float
    """Until the runs of a killed worker are taken over, and others carry on with its jobs."""


class History(NamedTuple):
    """Everything that is judged."""

    bodies: Sequence[Body]
    runs: Sequence[Run]
    jobs: Mapping[str, Job]
    freezes: Sequence[Freeze]
    until: datetime
    """Slots up to this instant must have their outcome."""
    max_lost_leases: int
    clock: float
    """What an instant's timestamp needs to be on the clock of the bodies."""
    kills: Sequence[Kill] = ()
    limits: Limits = Limits(5.0, 10.0)


def broken_promises(history: History) -> list[str]:
    """What should not have happened, each with the guarantee that it breaks; empty where all is well."""
    return [f"{name}: {text}" for name, rule in RULES.items() for text in rule(history)]


def one_body_at_a_time(history: History) -> Iterable[str]:
    """G1, as far as it can be seen: the bodies of an exclusive job do not overlap, but for one that was frozen."""
    for job, bodies in _by_job(history).items():
        for before, after in pairwise(bodies):
            if history.jobs[job].exclusive and after.began < before.last_seen and not _was_frozen(before, history):
                seconds = before.last_seen - after.began
                yield f"{job}: {_name(after)} began {seconds:.2f} s before the end of {_name(before)}"


def one_outcome_for_each_slot(history: History) -> Iterable[str]:
    """G2: from a job's first slot to the last one that counts, each has one outcome and is counted once."""
    for name, job in history.jobs.items():
        runs = [run for run in history.runs if run.job == name and run.kind == "schedule"]
        covered = Counter(slot for slot, _ in _outcomes(runs, job))
        counted = sorted(slot for slot in covered if slot <= history.until)
        if not counted:
            yield f"{name}: not one slot"
            continue
        step = timedelta(seconds=job.every)
        expected = {counted[0] + at * step for at in range(int((history.until - counted[0]) / step) + 1)}
        for slot in sorted(expected - covered.keys()):
            yield f"{name}: the slot {slot} has no outcome"
        for slot in sorted(slot for slot in counted if covered[slot] > 1 or slot not in expected):
            yield f"{name}: the slot {slot} is counted {covered[slot]} times, or lies beside the grid"


def every_attempt_in_turn(history: History) -> Iterable[str]:
    """G2: the attempts of a slot are numbered without a gap, and all but the last were given up for a retry."""
    for (job, slot), runs in _attempts(history.runs).items():
        if [run.attempt for run in runs] != list(range(1, len(runs) + 1)):
            yield f"{job}, slot {slot}: attempts {[run.attempt for run in runs]}"
        if any(run.state != "retry" for run in runs[:-1]):
            yield f"{job}, slot {slot}: {[run.state for run in runs]}"


def one_start_for_each_attempt(history: History) -> Iterable[str]:
    """G3: however often a message was delivered; a retry by Celery itself is another start of the same attempt."""
    starts = Counter((body.run, body.retries) for body in history.bodies)
    for (run, retries), count in starts.items():
        if count > 1:
            yield f"run {run} began {count} times at retry {retries}"


def fences_grow(history: History) -> Iterable[str]:
    """G4: a body that begins later has a fence that is not lower, and another run has a higher one."""
    for job, bodies in _by_job(history).items():
        for before, after in pairwise(bodies):
            if not history.jobs[job].exclusive:
                continue
            if after.fence < before.fence or (after.fence == before.fence and after.run != before.run):
                yield f"{job}: {_name(after)} began after {_name(before)}"


def successes_were_seen(history: History) -> Iterable[str]:
    """G4: no outcome comes from anywhere but the body it speaks of."""
    ended = {body.run for body in history.bodies if body.ended == "ends"}
    known = {run.run for run in history.runs}
    for run in history.runs:
        if run.state == "success" and run.run not in ended:
            yield f"{run.job}, slot {run.slot}, attempt {run.attempt} is a success, and its body never ended"
        if run.state == "success" and history.jobs[run.job].always_fails:
            yield f"{run.job}, slot {run.slot} succeeded, which it cannot"
    for body in history.bodies:
        if body.run not in known:
            yield f"{_name(body)} of {body.job} is in no row"


def no_body_outlives_its_lease(history: History) -> Iterable[str]:
    """G5: when the end of a run is on record, whoever wrote it, its body runs no more, but for one that was frozen."""
    runs = {run.run: run for run in history.runs}
    for body in history.bodies:
        run = runs.get(body.run)
        if run is None or run.finished is None or not history.jobs[run.job].exclusive or _was_frozen(body, history):
            continue
        beyond = body.last_seen - (run.finished.timestamp() + history.clock)
        if beyond > _A_MOMENT:
            yield f"{run.job}: {_name(body)} lived {beyond:.2f} s after it had ended as {run.state} ({run.reason})"


def others_carry_on(history: History) -> Iterable[str]:
    """G6: after a kill the runs of a worker are taken over in time, and jobs that were not at work begin in time."""
    runs = {run.run: run for run in history.runs}
    for kill in history.kills:
        for body in history.bodies:
            if body.process != kill.process or body.ended is not None or not history.jobs[body.job].exclusive:
                continue
            finished = runs[body.run].finished if body.run in runs else None
            late = math.inf if finished is None else finished.timestamp() + history.clock - kill.at
            if late > history.limits.lease:
                yield f"{body.job}: {_name(body)} was killed, and taken over after {late:.1f} s"
        limit = history.limits.dispatch if kill.is_beat else history.limits.lease
        for name, bodies in _by_job(history).items():
            job = history.jobs[name]
            if not job.exclusive or any(body.began <= kill.at <= body.last_seen for body in bodies):
                continue
            pause = min((body.began for body in bodies if body.began > kill.at), default=math.inf) - kill.at
            if pause > limit + job.every:
                who = "a beat" if kill.is_beat else "a worker"
                yield f"{name}: nothing began for {pause:.1f} s after {who} was killed"


def retries_are_bounded(history: History) -> Iterable[str]:
    """G10: a slot fails no more often than it may, loses no more leases than it may, and is then a dead letter."""
    failed = Counter(body.run for body in history.bodies if body.ended == "fails")
    for (name, slot), runs in _attempts(history.runs).items():
        job, last = history.jobs[name], runs[-1]
        failures = sum(failed[run.run] for run in runs)
        if last.failures > job.max_retries + 1 or last.lost_leases > history.max_lost_leases + 1:
            yield f"{name}, slot {slot}: {last.failures} failures, {last.lost_leases} lost leases"
        if failures > job.max_retries + 1 + last.lost_leases + _uncounted(runs):
            yield f"{name}, slot {slot}: its bodies failed {failures} times"
        exhausted = last.failures > job.max_retries or last.lost_leases > history.max_lost_leases
        if (last.state == "dlq") != exhausted and last.state in OUTCOMES:
            yield f"{name}, slot {slot}: {last.state} after {last.failures} failures, {last.lost_leases} lost leases"


def no_pile_up(history: History) -> Iterable[str]:
    """G9: what was missed comes as one run; no instant has more runs of a job than its kind allows."""
    for name, job in history.jobs.items():
        fired = sorted(run.slot for run in history.runs if run.job == name and run.attempt == 1)
        for before, after in pairwise(fired):
            if after - before < timedelta(seconds=job.every):
                yield f"{name}: slots {before} and {after} both fired"


RULES: Mapping[str, Callable[[History], Iterable[str]]] = {
    "G1 exclusive": one_body_at_a_time,
    "G2 no lost fire": one_outcome_for_each_slot,
    "G2 attempts in turn": every_attempt_in_turn,
    "G3 one start": one_start_for_each_attempt,
    "G4 fencing": fences_grow,
    "G4 outcomes": successes_were_seen,
    "G5 self-stop": no_body_outlives_its_lease,
    "G6 fail-over": others_carry_on,
    "G9 no pile-up": no_pile_up,
    "G10 bounded retries": retries_are_bounded,
}


def _by_job(history: History) -> Mapping[str, list[Body]]:
    found: defaultdict[str, list[Body]] = defaultdict(list)
    for body in sorted(history.bodies, key=lambda body: body.began):
        found[body.job].append(body)
    return found


def _attempts(runs: Iterable[Run]) -> Mapping[tuple[str, datetime], list[Run]]:
    found: defaultdict[tuple[str, datetime], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.attempt):
        if run.attempt > 0:  # a gap of skipped slots is no attempt
            found[run.job, run.slot].append(run)
    return found


def _outcomes(runs: Sequence[Run], job: Job) -> Iterable[tuple[datetime, str]]:
    for attempts in _attempts(runs).values():
        if attempts[-1].state in OUTCOMES:
            yield attempts[-1].slot, attempts[-1].state
    for gap in (run for run in runs if run.attempt == 0):
        for at in range(gap.slots):
            yield gap.slot + at * timedelta(seconds=job.every), gap.state


def _uncounted(runs: Sequence[Run]) -> int:
    """Attempts whose end reached no database: the outage was to blame, not the slot."""
    return sum(run.state == "retry" and run.reason != "failed" for run in runs)


def _was_frozen(body: Body, history: History) -> bool:
    return any(
        freeze.process == body.process and freeze.since <= body.last_seen and freeze.until >= body.began
        for freeze in history.freezes
    )


def _name(body: Body) -> str:
    return f"attempt {body.attempt} of slot {body.slot} (fence {body.fence}, run {body.run})"
