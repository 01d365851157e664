"""A short storm over real processes, on a seed that changes and is printed where it fails."""

import os
import secrets
from pathlib import Path

import pytest

from tests.chaos.weather import run

SECONDS = 80.0  # and as long again in calm, until all is judged


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("SQLBEAT_TEST_LONG"), reason="a storm takes minutes: SQLBEAT_TEST_LONG=1, or make chaos"
)
def test_no_promise_is_broken_in_a_storm(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or secrets.randbelow(2**32))
    told: list[str] = []
    report = run(SECONDS, "postgresql", "redis", seed, tmp_path, told.append)
    assert not report.broken, "\n".join([f"SEED={seed}", *report.broken, *told])
    assert report.bodies > 100 and report.runs["success"] > 100, report
    assert sum(report.faults.values()) > 10, report
    for case in ("runs left to a strategy", "bodies of a plain worker", "backlog"):  # the others need luck
        assert report.cases[case], report
