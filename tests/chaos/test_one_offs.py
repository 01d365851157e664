"""The judge of one-offs finds each kind of broken promise, and nothing in a sound history."""

from collections.abc import Sequence

import pytest

from tests.chaos.history import Freeze, History, Limits, Run
from tests.chaos.one_off_rules import JOB, Ledger, Submitted, broken_promises, of
from tests.chaos.test_history import CLOCK, NOON, slot
from tests.chaos.witnesses import Body

NEW, AGAIN = Submitted("a", "key", True, 100.0), Submitted("a", "key", False, 100.1)


def run(name: str = "a", state: str = "success", **facts: object) -> Run:
    made = Run(name, name, "one_off", NOON, None, 1, 1, state, None, 1, 0, 0, slot(0))
    return made._replace(finished=slot(1), **facts)  # type: ignore[arg-type]


def body(name: str = "a", fence: int = 1, began: float = 100.2, ended: str | None = "ends", **facts: object) -> Body:
    made = Body(JOB, NOON.isoformat(), name, fence, fence, 0, 7, began, began + 0.3, ended)
    return made._replace(**facts)  # type: ignore[arg-type]


def judged(ledger: Ledger, runs: Sequence[Run], bodies: Sequence[Body], freezes: Sequence[Freeze] = ()) -> list[str]:
    history = History((), (), {}, freezes, slot(2), 1, CLOCK, (), Limits(3.0, 6.0))
    return sorted({text.partition(":")[0] for text in broken_promises(of(history, ledger, runs, bodies))})


LEDGER = Ledger([NEW, AGAIN])


def test_a_history_that_is_well_breaks_no_promise() -> None:
    assert judged(LEDGER, [run()], [body()]) == []
    tried_again = [body(ended="fails"), body(fence=3, began=100.6)]
    assert judged(LEDGER, [run(failures=1, fence=3)], tried_again) == []
    assert judged(Ledger([NEW], {"a": 100.1}), [run(state="cancelled")], []) == []


@pytest.mark.parametrize(
    ("ledger", "runs", "bodies", "broken"),
    [
        pytest.param(LEDGER, [], [], "one-offs, an outcome", id="no row"),
        pytest.param(LEDGER, [run(state="claimed")], [], "one-offs, an outcome", id="no outcome"),
        pytest.param(
            Ledger(), [run(state="retry")], [], "one-offs, an outcome", id="not acknowledged, and without an outcome"
        ),
        pytest.param(
            Ledger([NEW, AGAIN._replace(run="b")]),
            [run(), run("b", "cancelled")],
            [body()],
            "one-offs, one run for a key",
            id="two runs of a key",
        ),
        pytest.param(Ledger([NEW, NEW]), [run()], [body()], "one-offs, one run for a key", id="new to two"),
        pytest.param(
            LEDGER, [run()], [body(ended="fails"), body(began=100.6)], "one-offs, one start", id="two starts of a fence"
        ),
        pytest.param(
            LEDGER,
            [run()],
            [body(ended=None), body(fence=2, began=100.3)],
            "one-offs, one body at a time",
            id="overlap",
        ),
        pytest.param(
            LEDGER, [run()], [body(fence=2), body(began=100.6)], "one-offs, one body at a time", id="the fence fell"
        ),
        pytest.param(LEDGER, [run()], [body(ended="fails")], "one-offs, outcomes", id="a success that nobody saw"),
        pytest.param(LEDGER, [run(failures=5)], [body()], "one-offs, outcomes", id="too many failures"),
        pytest.param(
            LEDGER, [run()], [body(), body(fence=2, began=101.5)], "one-offs, outcomes", id="a body after the end"
        ),
        pytest.param(LEDGER, [run()], [body(), body("b")], "one-offs, outcomes", id="a body without a row"),
        pytest.param(
            Ledger([NEW], {"a": 100.1}), [run()], [body()], "one-offs, cancelled", id="a success after its cancellation"
        ),
        pytest.param(
            Ledger([NEW], {"a": 100.1}),
            [run(state="cancelled")],
            [body(ended="is stopped", last_seen=107.0)],
            "one-offs, cancelled",
            id="stopped too late",
        ),
    ],
)
def test_what_is_broken_is_found(ledger: Ledger, runs: Sequence[Run], bodies: Sequence[Body], broken: str) -> None:
    assert broken in judged(ledger, runs, bodies)


def test_a_body_that_stood_still_may_overlap_its_successor() -> None:
    bodies = [body(ended=None, last_seen=100.9), body(fence=2, began=100.3)]
    assert judged(LEDGER, [run()], bodies, [Freeze(7, 100.2, 101.0)]) == []
