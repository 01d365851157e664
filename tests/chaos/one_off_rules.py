"""The rules of what was submitted: by the submitters' ledger, the bodies' account, and the rows."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tests.chaos.history import OUTCOMES, History, Run, name_of, on_clock, stood_still_before, was_frozen
from tests.chaos.witnesses import Body

JOB = "one-off"  # what stands for the name of a job in their bodies' account
MAX_RETRIES = 3
_A_MOMENT = 0.3  # seconds, as for the runs of jobs


class Submitted(NamedTuple):
    """What a submitter was told: a run, which may be that of another one's."""

    run: str
    key: str | None
    is_new: bool
    at: float


class Ledger(NamedTuple):
    """What the submitters were told."""

    submitted: Sequence[Submitted] = ()
    cancelled: Mapping[str, float] = {}
    """Runs whose cancellation was acknowledged, and when."""
    failed: int = 0
    """How often nobody could tell whether a submission was written."""


def read(lines: Iterable[str]) -> Ledger:
    """Return what stands in a ledger."""
    facts = [json.loads(line) for line in lines]
    submitted = [Submitted(each["run"], each["key"], each["is_new"], each["at"]) for each in _of(facts, "submitted")]
    cancelled = {each["run"]: each["at"] for each in _of(facts, "cancelled")}
    return Ledger(submitted, cancelled, len(list(_of(facts, "failed"))))


def _of(facts: Iterable[Mapping[str, Any]], what: str) -> Iterator[Mapping[str, Any]]:
    return (each for each in facts if each["what"] == what)


class OneOffs(NamedTuple):
    """What is judged of them."""

    ledger: Ledger
    runs: Mapping[str, Run]
    bodies: Mapping[str, Sequence[Body]]
    """By run, in the order in which they began."""
    history: History
    """Of everything else, for the faults that excuse it."""


def of(history: History, ledger: Ledger, runs: Iterable[Run], bodies: Iterable[Body]) -> OneOffs:
    """Put together what is judged."""
    by_run: defaultdict[str, list[Body]] = defaultdict(list)
    for body in sorted(bodies, key=lambda body: body.began):
        by_run[body.run].append(body)
    return OneOffs(ledger, {run.run: run for run in runs}, by_run, history)


def missing(seen: OneOffs) -> Iterator[str]:
    """Find submissions without a row or an outcome, whether they were acknowledged or not."""
    for run_id in sorted({each.run for each in seen.ledger.submitted} | seen.runs.keys()):
        run = seen.runs.get(run_id)
        if run is None:
            yield f"run {run_id} was submitted, and has no row"
        elif run.state not in OUTCOMES:
            yield f"run {run_id} has no outcome: it is {run.state} ({run.reason})"


def one_run_for_each_key(seen: OneOffs) -> Iterator[str]:
    """Find keys that stand for more than one run, or were new to more than one submitter."""
    by_key: defaultdict[str, list[Submitted]] = defaultdict(list)
    for each in seen.ledger.submitted:
        if each.key is not None:
            by_key[each.key].append(each)
    for key, answers in by_key.items():
        if len({each.run for each in answers}) > 1:
            yield f"key {key} stands for {len({each.run for each in answers})} runs"
        if sum(each.is_new for each in answers) > 1:
            yield f"key {key} was new {sum(each.is_new for each in answers)} times"


def one_start_for_each_try(seen: OneOffs) -> Iterator[str]:
    """Find fences that began more than once, however often their message was delivered."""
    for run_id, bodies in seen.bodies.items():
        for (fence, retries), count in Counter((body.fence, body.retries) for body in bodies).items():
            if count > 1:
                yield f"run {run_id} began {count} times with fence {fence} at retry {retries}"


def one_body_at_a_time(seen: OneOffs) -> Iterator[str]:
    """Find bodies of a run that overlap, or that have no higher fence than the one before."""
    for run_id, all_bodies in seen.bodies.items():
        bodies = [body for body in all_bodies if not stood_still_before(body, seen.history)]
        for before, after in pairwise(bodies):
            if after.began < before.last_seen and not was_frozen(before, seen.history):
                yield f"run {run_id}: {name_of(after)} began before the end of {name_of(before)}"
            if after.fence <= before.fence:
                yield f"run {run_id}: {name_of(after)} began after {name_of(before)}"


def a_success_was_seen_and_is_the_last(seen: OneOffs) -> Iterator[str]:
    """Find successes that no body ended in, and bodies that begin once the end is on record."""
    for run_id, run in seen.runs.items():
        bodies = seen.bodies.get(run_id, ())
        if run.state == "success" and not any(body.ended == "ends" for body in bodies):
            yield f"run {run_id} is a success, and its body never ended"
        if run.failures > MAX_RETRIES + 1:
            yield f"run {run_id} failed {run.failures} times"
        if run.finished is None:
            continue
        ended_at = on_clock(run.finished, seen.history)
        for body in bodies:
            if body.began > ended_at + _A_MOMENT and not stood_still_before(body, seen.history):
                yield f"run {run_id}: {name_of(body)} began {body.began - ended_at:.2f} s after it was {run.state}"
    for run_id in sorted(seen.bodies.keys() - seen.runs.keys()):
        yield f"run {run_id} had a body, and has no row"


def cancelled_is_cancelled(seen: OneOffs) -> Iterator[str]:
    """Find what was acknowledged as cancelled and succeeds, or is not stopped in time."""
    for run_id, at in seen.ledger.cancelled.items():
        run = seen.runs.get(run_id)
        if run is not None and run.state in OUTCOMES and run.state != "cancelled":
            yield f"run {run_id} was cancelled, and ended as {run.state} ({run.reason})"
        for body in seen.bodies.get(run_id, ()):
            if body.last_seen > at + seen.history.limits.lease and not was_frozen(body, seen.history):
                yield f"run {run_id}: {name_of(body)} lived {body.last_seen - at:.1f} s after it was cancelled"


RULES = {
    "one-offs, an outcome": missing,
    "one-offs, one run for a key": one_run_for_each_key,
    "one-offs, one start": one_start_for_each_try,
    "one-offs, one body at a time": one_body_at_a_time,
    "one-offs, outcomes": a_success_was_seen_and_is_the_last,
    "one-offs, cancelled": cancelled_is_cancelled,
}


def broken_promises(seen: OneOffs) -> list[str]:
    """Return what should not have happened; empty where all is well."""
    return [f"{name}: {text}" for name, rule in RULES.items() for text in rule(seen)]


def cases(seen: OneOffs) -> Mapping[str, int]:
    """How often what the rules are about came to pass."""
    keys = Counter(each.key for each in seen.ledger.submitted if each.key is not None)
    states = Counter(run.state for run in seen.runs.values())
    later = sum(any(body.attempt > 1 for body in bodies) for bodies in seen.bodies.values())
    return {
        "one-offs": len(seen.runs),
        "keys that several submitted": sum(count > 1 for count in keys.values()),
        "one-offs cancelled": states["cancelled"],
        "one-offs tried again": later,
        "submissions in doubt": seen.ledger.failed,
    }
