"""The rules that hold for every job: what may follow what, by an idea of their own."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from tests.chaos.history import (
    OUTCOMES,
    History,
    Job,
    Run,
    attempts_of,
    by_job,
    name_of,
    on_clock,
    stood_still_before,
    was_frozen,
)

_A_MOMENT = 0.3  # seconds; between the last sign of life and the record of the end lie two clocks and a busy machine
_FENCED = {"claimed", "running", "success", "retry", "failed", "dlq", "dispatched"}  # a skipped slot needs no claim


def one_body_at_a_time(history: History) -> Iterable[str]:
    """G1, as far as it can be seen.

    The bodies of an exclusive job do not overlap, but for one that was frozen, or that began after
    its worker had stood still between the last check of the lease and its first line.
    """
    for job, bodies in by_job(history).items():
        for before, after in pairwise(body for body in bodies if not stood_still_before(body, history)):
            if history.jobs[job].exclusive and after.began < before.last_seen and not was_frozen(before, history):
                seconds = before.last_seen - after.began
                yield f"{job}: {name_of(after)} began {seconds:.2f} s before the end of {name_of(before)}"


def one_outcome_for_each_slot(history: History) -> Iterable[str]:
    """G2: each slot from a job's first to the last that counts has one outcome and is counted once.

    A job that is deleted now and then has no slot while it is not there; by hand it may leave a run
    without its end.
    """
    for name, job in history.jobs.items():
        runs = [run for run in history.runs if run.job == name and run.kind == "schedule"]
        covered = Counter(slot for slot, _ in _outcomes(runs, job))
        counted = sorted(slot for slot in covered if slot <= history.until)
        if not counted:
            yield f"{name}: not one slot"
            continue
        step = timedelta(seconds=job.every)
        expected = {counted[0] + at * step for at in range(int((history.until - counted[0]) / step) + 1)}
        missing = expected - covered.keys()
        if job.is_deleted:
            fired = {run.slot for run in runs if run.slot <= history.until} - covered.keys()
            missing = fired if job.is_deleted == "by the package" else set()
        for slot in sorted(missing):
            yield f"{name}: the slot {slot} has no outcome"
        for slot in sorted(slot for slot in counted if covered[slot] > 1 or slot not in expected):
            yield f"{name}: the slot {slot} is counted {covered[slot]} times, or lies beside the grid"


def every_attempt_in_turn(history: History) -> Iterable[str]:
    """G2: attempts of a slot are numbered without a gap.

    All but the last were given up for a retry.
    """
    for (job, slot), runs in attempts_of(history.runs).items():
        if [run.attempt for run in runs] != list(range(1, len(runs) + 1)):
            yield f"{job}, slot {slot}: attempts {[run.attempt for run in runs]}"
        if any(run.state != "retry" for run in runs[:-1]):
            yield f"{job}, slot {slot}: {[run.state for run in runs]}"


def one_start_for_each_attempt(history: History) -> Iterable[str]:
    """G3: however often a message was delivered.

    A retry by Celery itself is another start of the same attempt.
    """
    starts = Counter((body.run, body.retries) for body in history.bodies if body.leased)
    for (run, retries), count in starts.items():
        if count > 1:
            yield f"run {run} began {count} times at retry {retries}"


def fences_grow(history: History) -> Iterable[str]:
    """G4: a body that begins later has a fence that is not lower, and another run a higher one.

    So has a later slot.

    That holds for the name of a job, whoever deleted it in between. Nobody can stop a body whose
    worker stood still between the last check of the lease and its first line.
    """
    in_order = {name for name, job in history.jobs.items() if job.exclusive or job.is_deleted}
    for job, all_bodies in by_job(history).items():
        bodies = [body for body in all_bodies if not stood_still_before(body, history)]
        for before, after in pairwise(bodies if job in in_order else ()):
            if after.fence < before.fence or (after.fence == before.fence and after.run != before.run):
                yield f"{job}: {name_of(after)} began after {name_of(before)}"
    for job in sorted(in_order):
        fenced = [run for run in history.runs if run.job == job and run.attempt > 0 and run.state in _FENCED]
        for earlier, later in pairwise(sorted(fenced, key=lambda run: (run.slot, run.attempt))):
            if later.fence <= earlier.fence:
                yield f"{job}: slot {later.slot} has fence {later.fence}, slot {earlier.slot} had {earlier.fence}"


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
            yield f"{name_of(body)} of {body.job} is in no row"


def no_body_outlives_its_lease(history: History) -> Iterable[str]:
    """G5: once the end of a run is on record, its body runs no more, unless it was frozen.

    An operator cancels a run in the database first. Its worker learns that from its next heartbeat,
    and stops the body before the lease ends where it cannot ask.
    """
    runs = {run.run: run for run in history.runs}
    for body in history.bodies:
        run = runs.get(body.run)
        if run is None or run.finished is None or not history.jobs[run.job].exclusive:
            continue
        if was_frozen(body, history):
            continue
        beyond = body.last_seen - on_clock(run.finished, history)
        if beyond > (history.limits.lease if run.state == "cancelled" else _A_MOMENT):
            yield (f"{run.job}: {name_of(body)} lived {beyond:.2f} s after it had ended as {run.state} ({run.reason})")


def others_carry_on(history: History) -> Iterable[str]:
    """G6: after a kill a worker's runs are taken over in time, and idle jobs begin in time.

    A job is not idle whose message is lost, and of which a beat told that it sends no copy, since
    somebody who keeps no leases may have it: it goes on when its slot ends as never started, at its
    last deadline.
    """
    runs = {run.run: run for run in history.runs}
    for kill in history.kills:
        for body in history.bodies:
            if body.process != kill.process or body.ended is not None or not history.jobs[body.job].exclusive:
                continue
            finished = runs[body.run].finished if body.run in runs else None
            late = math.inf if finished is None else on_clock(finished, history) - kill.at
            if late > history.limits.lease:
                yield f"{body.job}: {name_of(body)} was killed, and taken over after {late:.1f} s"
        limit = history.limits.dispatch if kill.is_beat else history.limits.lease
        for name, bodies in by_job(history).items():
            job = history.jobs[name]
            if not job.exclusive or any(body.began <= kill.at <= body.last_seen for body in bodies):
                continue
            idle_at = max(kill.at, _ends_waiting(name, kill.at, history))
            pause = min((body.began for body in bodies if body.began > kill.at), default=math.inf) - idle_at
            if pause > limit + job.every:
                who = "a beat" if kill.is_beat else "a worker"
                yield f"{name}: nothing began for {pause:.1f} s after {who} was killed"


def retries_are_bounded(history: History) -> Iterable[str]:
    """G10: a slot fails and loses leases no more often than it may, and is then a dead letter."""
    failed = Counter(body.run for body in history.bodies if body.ended == "fails")
    for (name, slot), runs in attempts_of(history.runs).items():
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
    """G9: what was missed comes as one run.

    No instant has more runs of a job than its kind allows.
    """
    for name, job in history.jobs.items():
        fired = sorted(run.slot for run in history.runs if run.job == name and run.attempt == 1)
        for before, after in pairwise(fired):
            if after - before < timedelta(seconds=job.every):
                yield f"{name}: slots {before} and {after} both fired"


def have_begun(history: History) -> bool:
    """Return whether all idle jobs have begun since the last kill.

    Before that nobody can tell how long they stood still.
    """
    last = max((kill.at for kill in history.kills), default=-math.inf)
    return all(bodies[-1].began > last for job, bodies in by_job(history).items() if history.jobs[job].exclusive)


def _ends_waiting(job: str, at: float, history: History) -> float:
    """Return when the slot of a job ended whose message nobody took; its deadlines are bounded."""
    started = {body.run for body in history.bodies}
    lost = [
        on_clock(run.finished, history)
        for run in history.runs
        if (run.job, run.state, run.reason) == (job, "dispatched", "never started") and run.run not in started
        if run.run in history.withheld and run.finished is not None and on_clock(run.slot, history) <= at
    ]
    return max((end for end in lost if end - at <= history.limits.queued), default=-math.inf)


def _outcomes(runs: Sequence[Run], job: Job) -> Iterable[tuple[datetime, str]]:
    for attempts in attempts_of(runs).values():
        if attempts[-1].state in OUTCOMES:
            yield attempts[-1].slot, attempts[-1].state
    for gap in (run for run in runs if run.attempt == 0):
        for at in range(gap.slots):
            yield gap.slot + at * timedelta(seconds=job.every), gap.state


def _uncounted(runs: Sequence[Run]) -> int:
    """Return attempts whose end reached no database: the outage was to blame, not the slot."""
    return sum(run.state == "retry" and run.reason != "failed" for run in runs)
