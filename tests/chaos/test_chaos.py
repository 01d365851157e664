"""A short storm over real processes, on a seed that changes and is printed where it fails."""

import os
import secrets
from pathlib import Path

import pytest

from tests.chaos.weather import run
from tests.support.beats import LONG

SECONDS = 80.0 if LONG else 20.0  # and as long again until all is judged; with what is timed some minutes


@pytest.mark.slow
def test_no_promise_is_broken_in_a_storm(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or secrets.randbelow(2**32))
    told: list[str] = []
    report = run(SECONDS, "postgresql", "redis", seed, tmp_path, told.append, is_timed=LONG)
    assert not report.broken, "\n".join([f"SEED={seed}", *report.broken, *told])
    assert report.bodies > 100 and report.runs["success"] > 100, report
    assert sum(report.faults.values()) > SECONDS / 8, report
    for case in ("runs left to a strategy", "backlog"):  # the others need luck
        assert report.cases[case], report
    assert report.cases["bodies of a plain worker"] or not LONG, report
