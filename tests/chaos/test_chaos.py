"""A short storm over real processes, on a seed that changes from run to run and is printed where it fails."""

import os
import secrets
from pathlib import Path

import pytest

from tests.chaos.weather import run

SECONDS = 120.0


@pytest.mark.slow
def test_no_promise_is_broken_in_a_storm(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or secrets.randbelow(2**32))
    told: list[str] = []
    report = run(SECONDS, "postgresql", "redis", seed, tmp_path, told.append)
    assert not report.broken, "\n".join([f"SEED={seed}", *report.broken, *told])
    assert report.bodies > 100 and report.runs["success"] > 100, report
    assert sum(report.faults.values()) > 10, report
