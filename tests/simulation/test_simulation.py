"""A little of `make simulate`.

A few worlds, the same world twice, and what the shortening of a story promises.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.body_checks import BodyChecks
from tests.simulation.faults import schedule
from tests.simulation.ledger import Ledger, Violation

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("SQLBEAT_TEST_SEED", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_every_check_holds_in_a_world_where_everything_goes_wrong(number: int) -> None:
    lived = campaign.live(SEED + number)
    assert lived.found is None, "\n".join(campaign.story(lived.found))
    assert lived.counts["begin"] and lived.counts["statement"] > 100


def test_a_world_without_faults_loses_nothing() -> None:
    lived = campaign.live(SEED, only=())
    assert lived.found is None, "\n".join(campaign.story(lived.found))


@pytest.mark.slow
def test_the_same_seed_is_the_same_world_in_another_process() -> None:
    script = "from tests.simulation import campaign; print(campaign.live(7, 2000)[1:3])"
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1, said


@pytest.mark.slow
def test_a_failure_happens_again_by_its_seed_and_with_fewer_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Ledger.did

    def fails_at_a_death(ledger: Ledger, what: str) -> None:
        counted(ledger, what)
        if what == "death":
            raise Violation("G0", "somebody died", None)

    monkeypatch.setattr(Ledger, "did", fails_at_a_death)
    monkeypatch.setattr(campaign, "_SHORTEN_SECONDS", math.inf)  # a busy machine leaves no fault out in a minute
    deaths = {seed: [fault.at for fault in schedule(seed) if fault.kind == "kill"] for seed in range(1, 50)}
    seed = min((seed for seed, ats in deaths.items() if ats), key=lambda seed: deaths[seed][0])  # soon over, each time
    found = campaign.live(seed).found
    assert found is not None and found.invariant == "G0"
    short = campaign.shortened(found)
    assert short.only is not None and len(short.only) == 1, "one death needs one fault"
    told = list(campaign.story(short))
    assert told[-2] == "G0: somebody died"
    assert told[-1] == f"again: make simulate SEED={seed} STEPS={short.steps} ONLY={short.only[0]}"


def test_a_failure_that_a_check_by_time_finds_happens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a check follows no statement, so the world has no further step when it fails."""

    def fails_after_a_minute(checks: BodyChecks) -> None:
        if checks._ledger.hub.now > 60.0:
            checks._fail("G0", "a minute is over")

    monkeypatch.setattr(BodyChecks, "watch", fails_after_a_minute)
    found = campaign.live(SEED, only=()).found
    assert found is not None and found.invariant == "G0"
    assert [*campaign.story(found)][-2] == "G0: a minute is over"
