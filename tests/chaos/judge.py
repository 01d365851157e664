"""Whether a history keeps the promises: all rules, each with the guarantee that it stands for."""

from collections.abc import Callable, Iterable, Mapping

from tests.chaos.case_rules import (
    a_backlog_is_not_dropped,
    a_returned_body_is_no_failure,
    a_strategy_is_left_alone,
    hung_bodies_are_stopped,
    no_run_beside_itself,
)
from tests.chaos.history import History
from tests.chaos.rules import (
    every_attempt_in_turn,
    fences_grow,
    no_body_outlives_its_lease,
    no_pile_up,
    one_body_at_a_time,
    one_outcome_for_each_slot,
    one_start_for_each_attempt,
    others_carry_on,
    retries_are_bounded,
    successes_were_seen,
)

RULES: Mapping[str, Callable[[History], Iterable[str]]] = {
    "G1 exclusive": one_body_at_a_time,
    "G2 no lost fire": one_outcome_for_each_slot,
    "G2 attempts in turn": every_attempt_in_turn,
    "G2 backlog": a_backlog_is_not_dropped,
    "G3 one start": one_start_for_each_attempt,
    "G3 not beside itself": no_run_beside_itself,
    "G3 strategies": a_strategy_is_left_alone,
    "G4 fencing": fences_grow,
    "G4 outcomes": successes_were_seen,
    "G5 self-stop": no_body_outlives_its_lease,
    "G6 fail-over": others_carry_on,
    "G9 no pile-up": no_pile_up,
    "G10 bounded retries": retries_are_bounded,
    "G10 returned": a_returned_body_is_no_failure,
    "G10 max_runtime": hung_bodies_are_stopped,
}


def broken_promises(history: History) -> list[str]:
    """Return what should not have happened, each with the guarantee that it breaks.

    Empty where all is well.
    """
    return [f"{name}: {text}" for name, rule in RULES.items() for text in rule(history)]
