"""The judge of histories finds each kind of broken promise, and nothing in a sound history."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import pytest

from celery_sqlbeat.beat.evidence import Evidence
from tests.chaos.history import Freeze, History, Job, Kill, Limits, Run
from tests.chaos.judge import broken_promises
from tests.chaos.rules import have_begun
from tests.chaos.witnesses import Body, read, withheld

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
CLOCK = 100.0 - NOON.timestamp()  # a slot begins at once
JOB = Job(every=1.0, exclusive=True, max_retries=1)


def slot(number: int) -> datetime:
    return NOON + timedelta(seconds=number)


def run(number: int, attempt: int = 1, state: str = "success", name: str = "", **facts: object) -> Run:
    key = name or f"run-{number}-{attempt}"
    made = Run(key, "job", "schedule", slot(number), None, 1, attempt, state, None, 10 * number + attempt, 0, 0)
    return made._replace(**facts)  # type: ignore[arg-type]


def body(number: int, attempt: int = 1, ended: str | None = "ends", **facts: object) -> Body:
    began = 100.0 + number + 0.4 * (attempt - 1)
    key, fence = f"run-{number}-{attempt}", 10 * number + attempt
    made = Body("job", slot(number).isoformat(), key, attempt, fence, 0, 7, began, began + 0.3, ended)
    return made._replace(**facts)  # type: ignore[arg-type]


def judged(
    bodies: Sequence[Body],
    runs: Sequence[Run],
    job: Job = JOB,
    freezes: Sequence[Freeze] = (),
    until: int = 2,
    kills: Sequence[Kill] = (),
) -> list[str]:
    broken = broken_promises(
        History(bodies, runs, {"job": job}, freezes, slot(until), 1, CLOCK, kills, Limits(3.0, 6.0))
    )
    return sorted({text.partition(":")[0] for text in broken})


BODIES = [body(0), body(1, 1, "fails"), body(1, 2), body(2)]
RUNS = [run(0), run(1, 1, "retry", reason="failed", failures=1), run(1, 2, failures=1), run(2)]


def test_a_history_that_is_well_breaks_no_promise() -> None:
    assert judged(BODIES, RUNS) == []
    gap = run(1, 0, "skipped", last_slot=slot(2), slots=2)
    assert judged([body(0), body(3)], [run(0), gap, run(3)], until=3) == []


def test_a_slot_beyond_the_end_may_still_be_open() -> None:
    assert judged(BODIES, [*RUNS, run(3, state="claimed")]) == []


@pytest.mark.parametrize(
    ("bodies", "runs", "broken"),
    [
        pytest.param([body(0, last_seen=101.2), *BODIES[1:]], RUNS, ["G1 exclusive"], id="two bodies at once"),
        pytest.param(BODIES[:3], RUNS[:3], ["G2 no lost fire"], id="a slot without a row"),
        pytest.param(BODIES, [*RUNS[:3], run(2, state="claimed")], ["G2 no lost fire"], id="a slot without an outcome"),
        pytest.param(
            BODIES, [*RUNS, run(2, 0, "skipped", slots=1)], ["G2 no lost fire"], id="a slot that ran and was skipped"
        ),
        pytest.param(
            BODIES,
            [*RUNS[:2], RUNS[2]._replace(attempt=3), run(2)],
            ["G2 attempts in turn"],
            id="an attempt is missing",
        ),
        pytest.param(
            BODIES,
            [run(0), run(1, 1, "success"), run(1, 2), run(2)],
            ["G2 attempts in turn", "G4 outcomes"],
            id="an attempt after a success",
        ),
        pytest.param([*BODIES, body(2, began=110.0, last_seen=110.1)], RUNS, ["G3 one start"], id="begun twice"),
        pytest.param(
            [*BODIES[:3], body(2, fence=3)], RUNS, ["G4 fencing"], id="a body with an older fence than the one before"
        ),
        pytest.param(
            [body(0), BODIES[1], body(1, 2, None), body(2)], RUNS, ["G4 outcomes"], id="a success that nobody saw"
        ),
        pytest.param(BODIES, [*RUNS[:3], run(2, name="other")], ["G4 outcomes"], id="a body without a row"),
        pytest.param(
            [body(0), body(1, 1, "fails"), body(1, 2, "fails"), body(2)],
            [*RUNS[:2], run(1, 2, "success", failures=2), run(2)],
            ["G10 bounded retries", "G4 outcomes"],
            id="a success after too many failures",
        ),
        pytest.param(
            [body(0), body(1, 1, "fails"), body(2)],
            [run(0), run(1, 1, "dlq", failures=1), run(2)],
            ["G10 bounded retries"],
            id="a dead letter with a retry left",
        ),
        pytest.param(
            BODIES,
            [*RUNS, run(2, name="extra", slot=slot(2) - timedelta(seconds=0.5), fence=15)],
            ["G2 no lost fire", "G4 outcomes", "G9 no pile-up"],
            id="a slot beside the grid",
        ),
    ],
)
def test_a_broken_promise_is_found(bodies: list[Body], runs: list[Run], broken: list[str]) -> None:
    assert judged(bodies, runs) == broken


def test_what_overlaps_a_frozen_worker_is_forgiven_and_only_that() -> None:
    late = [body(0, last_seen=101.2), *BODIES[1:]]
    assert judged(late, RUNS, freezes=[Freeze(7, 100.1, 101.0)]) == []
    assert judged(late, RUNS, freezes=[Freeze(8, 100.1, 101.0)]) == ["G1 exclusive"]
    assert judged(late, RUNS, freezes=[Freeze(7, 90.0, 99.0)]) == ["G1 exclusive"]


def test_a_body_is_forgiven_that_began_late_because_it_stood_still_after_the_last_check_of_its_lease() -> None:
    """And only if just that is on record: checked, told to go on, begun, in this order."""
    lost = run(1, state="retry", reason="lease lost", lost_leases=1)
    runs = [run(0), lost, run(1, 2, lost_leases=1), run(2)]
    late = body(1, began=101.5, last_seen=101.9, ended=None, checked=101.0, child=8)
    broken = ["G1 exclusive", "G4 fencing"]

    def judge(after: Body, freeze: Freeze | None = None) -> list[str]:
        return judged(
            [body(0), body(1, 2, last_seen=101.6, process=6), after, body(2)], runs, freezes=[freeze] if freeze else []
        )

    stood_still = Freeze(7, 100.9, 110.0, went_on=101.4)
    assert judge(late, stood_still) == []
    assert judge(late) == broken
    assert judge(late, stood_still._replace(process=9)) == broken
    assert judge(late, stood_still._replace(went_on=101.6)) == broken, "it had begun when it was told to go on"
    assert judge(late._replace(checked=101.45), stood_still) == broken, "it had gone on when it was checked"
    assert judge(late._replace(checked=None), stood_still) == broken
    assert judge(late, stood_still._replace(is_whole=False)) == broken, "its child went on meanwhile"
    assert judge(late._replace(child=7), stood_still._replace(is_whole=False)) == []
    older = body(2, began=101.95, last_seen=102.0, fence=11)
    assert judged([body(0), body(1, 2, last_seen=101.4, process=6), late, older], runs, freezes=[stood_still]) == [
        "G4 fencing"
    ]


def ended(number: int, seconds: float, **facts: object) -> Run:
    return run(number, finished=slot(number) + timedelta(seconds=seconds), **facts)  # type: ignore[arg-type]


def test_a_body_that_lives_on_after_its_run_has_ended_is_found() -> None:
    lost = ended(0, 0.1, state="retry", reason="lease lost", lost_leases=1)
    again = run(0, 2, lost_leases=1)
    lives_on = body(0, ended=None, last_seen=100.5)
    assert judged([lives_on, body(0, 2, began=100.6, last_seen=100.7)], [lost, again], until=0) == ["G5 self-stop"]
    stood_still = [Freeze(7, 100.0, 100.6)]
    assert judged([lives_on, body(0, 2, began=100.6)], [lost, again], until=0, freezes=stood_still) == []
    in_time = ended(0, 0.4, state="retry", reason="lease lost", lost_leases=1)
    assert judged([lives_on, body(0, 2, began=100.6)], [in_time, again], until=0) == []


def test_the_body_of_a_run_that_an_operator_cancelled_may_live_until_its_lease_ends() -> None:
    cancelled = ended(0, 0.1, state="cancelled", reason="cancelled by hand")
    lives_on = body(0, ended=None, last_seen=102.0)
    assert "G5 self-stop" not in judged([lives_on], [cancelled], until=0)
    too_long = body(0, ended=None, last_seen=120.0)
    assert "G5 self-stop" in judged([too_long], [cancelled], until=0)


def test_a_run_of_a_killed_worker_that_is_taken_over_late_is_found() -> None:
    killed = [Kill(7, False, 100.2)]
    bodies = [body(0, ended=None, last_seen=100.2), body(0, 2, began=107.0, last_seen=107.1, process=8)]

    def taken_over(seconds: float) -> list[Run]:
        lost = ended(0, seconds, state="retry", reason="lease lost", lost_leases=1)
        return [lost, run(0, 2, lost_leases=1)]

    assert judged(bodies, taken_over(6.1), until=0, kills=killed) == []
    assert judged(bodies, taken_over(6.3), until=0, kills=killed) == ["G6 fail-over"]


@pytest.mark.parametrize(
    ("is_beat", "pause", "broken"), [(True, 3.9, []), (True, 4.1, ["G6 fail-over"]), (False, 4.1, [])]
)
def test_a_job_that_waits_too_long_after_a_kill_is_found(is_beat: bool, pause: float, broken: list[str]) -> None:
    """Its slots may be on record all the same, as skipped."""
    gap = run(1, 0, "skipped", last_slot=slot(4), slots=4)
    late = body(5, began=100.5 + pause, last_seen=100.6 + pause)
    kills = [Kill(99, is_beat, 100.5)]
    assert judged([body(0), late], [run(0), gap, run(5)], until=5, kills=kills) == broken


@pytest.mark.parametrize(
    ("waited", "pause", "told", "reason", "broken"),
    [
        (20.0, 3.9, "run-1-1", "never started", []),
        (20.0, 3.9, "run-0-1", "never started", ["G6 fail-over"]),
        (20.0, 3.9, "run-1-1", None, ["G6 fail-over"]),
        (20.0, 7.1, "run-1-1", "never started", ["G6 fail-over"]),
        (31.0, 3.9, "run-1-1", "never started", ["G6 fail-over"]),
    ],
)
def test_only_a_job_of_whose_message_no_copy_was_safe_may_go_on_at_its_last_deadline(
    waited: float, pause: float, told: str, reason: str | None, broken: list[str]
) -> None:
    lost = ended(1, waited - 0.5, state="dispatched", reason=reason)
    gap = run(2, 0, "skipped", last_slot=slot(40), slots=39)
    late = body(41, began=100.5 + waited + pause, last_seen=100.6 + waited + pause)
    history = History(
        [body(0), late],
        [run(0), lost, gap, run(41)],
        {"job": JOB},
        (),
        slot(41),
        1,
        CLOCK,
        [Kill(99, False, 101.0)],
        Limits(3.0, 6.0, queued=30.0),
        withheld={told},
    )
    assert sorted({text.partition(":")[0] for text in broken_promises(history)}) == broken


def test_a_run_is_withheld_where_a_beat_says_so_for_want_of_evidence() -> None:
    unsafe = [Evidence.STRANGERS.value, f"{Evidence.STRANGERS.value}, or did at 2026", Evidence.SILENCE.value]
    lines = [f'text="run run-{at} of job a is not sent again: {reason}"' for at, reason in enumerate(unsafe)]
    waits = 'text="run run-9 of job a is not sent again: 3 messages wait in it, and it may be one of them"'
    assert withheld([*lines, waits]) == ["run-0", "run-1", "run-2"]


def test_a_storm_goes_on_until_it_is_seen_how_long_each_job_stood_still() -> None:
    history = History(BODIES, RUNS, {"job": JOB}, (), slot(2), 1, CLOCK)
    assert have_begun(history)
    assert have_begun(history._replace(kills=[Kill(99, False, 101.9)]))
    assert not have_begun(history._replace(kills=[Kill(99, False, 101.9), Kill(98, True, 102.1)]))
    assert have_begun(history._replace(kills=[Kill(98, True, 102.1)], jobs={"job": Job(1.0, False, 1)}))


def test_runs_that_may_overlap_do() -> None:
    late = [body(0, last_seen=101.2), *BODIES[1:]]
    assert judged(late, RUNS, Job(1.0, False, 1)) == []


def test_a_job_that_cannot_succeed_does_not() -> None:
    assert judged(BODIES, RUNS, Job(1.0, True, 1, always_fails=True)) == ["G4 outcomes"]


def test_a_body_is_read_from_its_lines() -> None:
    facts = '"job": "job", "slot": "s", "run": "r", "attempt": 1, "fence": 3, "retries": 0, "process": 7'
    begins = f'{{"body": "a", "what": "begins", "at": 1.0, {facts}}}'
    assert read([begins, '{"body": "a", "what": "lives", "at": 2.0}']) == [
        Body("job", "s", "r", 1, 3, 0, 7, 1.0, 2.0, None)
    ]
    assert read([begins, '{"body": "a", "what": "fails", "at": 2.5}'])[0].ended == "fails"
