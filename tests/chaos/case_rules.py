"""The rules for particular jobs.

Strategies, plain workers, backlogs, results that are lost, bodies that hang.
"""

from collections.abc import Iterable
from itertools import combinations

from tests.chaos.history import History, Run, attempts_of, by_job, by_run, name_of, on_clock
from tests.chaos.witnesses import Body

_A_MOMENT = 0.3  # seconds, as in the other rules
_LONGEST_FREEZE = 12.0  # seconds; of a plain worker
_IN_HAND = 20.0  # seconds; so long a message may lie unread in a plain worker that is busy with another one


def a_strategy_is_left_alone(history: History) -> Iterable[str]:
    """G3: a run that a strategy was given ends as dispatched, and was taken once.

    Nobody calls it a success.
    """
    bodies = by_run(history)
    for run in history.runs:
        strategy = history.jobs[run.job].strategy
        if strategy is None:
            continue
        told = bodies.get(run.run, [])
        if run.state == "success":
            yield f"{run.job}, slot {run.slot}: a success, which a task with a strategy of its own cannot tell"
        if len(told) > 1:
            yield f"{run.job}, slot {run.slot}: its strategy was given run {run.run} {len(told)} times"
        if strategy == "at once" and _is_left(run) and [body.ended for body in told] != ["ends"]:
            yield f"{run.job}, slot {run.slot}: acknowledged by a strategy that had not run it"


def no_run_beside_itself(history: History) -> Iterable[str]:
    """G3: beside a plain worker no run goes on twice at once, unless the broker sent it twice.

    A claim that was given back is sent again under a higher fence, since nobody knows whether the
    first message got out; a broken connection lets the broker deliver again what is under way; and
    so does Redis, after its visibility time-out, with what a solo worker acknowledges only once its
    body has ended, even where that worker was killed and a copy has begun since. All are told in
    the guarantees.
    """
    for run, bodies in by_run(history).items():
        for one, other in combinations(bodies, 2):
            is_shared = not (one.leased and other.leased)
            if not is_shared or one.fence != other.fence or other.began >= one.last_seen:
                continue
            if not (in_doubt(one, history) or any(_is_visible_again(each, other, history) for each in bodies)):
                yield f"{one.job}: run {run} began again {other.began - one.began:.1f} s after it had, beside itself"


def a_backlog_is_not_dropped(history: History) -> Iterable[str]:
    """G2: each message that waited for the first worker of its queue runs, or its slot says why."""
    for (name, slot), runs in attempts_of(history.runs).items():
        last = runs[-1]
        if not history.jobs[name].is_backlog or slot > history.until:
            continue
        if last.state == "dispatched":
            yield f"{name}, slot {slot}: dispatched, and no worker ever began it"
        if last.state == "skipped" and last.reason != "overlap":
            yield f"{name}, slot {slot}: skipped, since {last.reason}"


def a_returned_body_is_no_failure(history: History) -> Iterable[str]:
    """G10: whatever becomes of its result; but for a child that was killed while it returned."""
    runs = {run.run: run for run in history.runs}
    for body in history.bodies:
        run = runs.get(body.run)
        if run is None or body.ended != "ends" or not history.jobs[body.job].stores_result:
            continue
        if run.reason in ("failed", "retries exhausted") and not _was_killed(body, history):
            yield f"{body.job}: {name_of(body)} returned, and is {run.state} ({run.reason})"


def hung_bodies_are_stopped(history: History) -> Iterable[str]:
    """G10: a body that stands still is stopped when its time is over, and counted.

    Then its job goes on.
    """
    runs = {run.run: run for run in history.runs}
    bodies, of_jobs = by_run(history), by_job(history)
    for hang in history.hangs:
        run, body = runs[hang.run], bodies[hang.run][-1]
        longest = history.jobs[run.job].max_runtime
        assert longest is not None
        if run.finished is None or run.state == "success":
            yield f"{run.job}: {name_of(body)} hung, and is {run.state}"
            continue
        ended = on_clock(run.finished, history)
        if (run.reason or "").startswith("max_runtime"):
            stood_still = any(
                freeze.process == hang.process and freeze.since <= ended and freeze.until >= body.began
                for freeze in history.freezes
            )
            if ended - body.began > longest + history.limits.stop and not stood_still:
                yield f"{run.job}: {name_of(body)} hung, and was stopped after {ended - body.began:.1f} s"
            if run.failures != _failures_before(run, history) + 1:
                yield f"{run.job}: {name_of(body)} hung, and was not counted as a failure"
        elif hang.is_timed:
            yield f"{run.job}: {name_of(body)} hung, and ended as {run.state} ({run.reason})"
        later = [each.began for each in of_jobs[run.job] if each.began >= ended - _A_MOMENT]
        if hang.is_timed and min(later, default=float("inf")) - ended > history.limits.lease:
            yield f"{run.job}: nothing began after {name_of(body)} had hung"


def _is_left(run: Run) -> bool:
    return run.state == "dispatched" and run.reason == "left to the strategy of its task"


def _failures_before(run: Run, history: History) -> int:
    before = (each for each in history.runs if (each.job, each.slot) == (run.job, run.slot))
    return max((each.failures for each in before if 0 < each.attempt < run.attempt), default=0)


def in_doubt(body: Body, history: History) -> bool:
    """Whether the broker may have delivered its message twice: a consumer's connection broke."""
    return any(doubt.since <= body.last_seen and doubt.until >= body.began - _IN_HAND for doubt in history.doubts)


def _is_visible_again(one: Body, other: Body, history: History) -> bool:
    """Return whether the broker took the message of `one` for lost, and `other` is that message.

    A worker that stood still may have had it before its body began. One that ended in time has
    acknowledged it.
    """
    is_kept = not one.leased and (one.ended is None or one.last_seen > other.began)
    return is_kept and other.redelivered and other.began - one.began >= history.limits.unacknowledged - _LONGEST_FREEZE


def _was_killed(body: Body, history: History) -> bool:
    return any(
        kill.process == body.process and -_A_MOMENT < kill.at - body.last_seen < history.limits.lease
        for kill in history.child_kills
    )
