"""ARCHITECTURE.md names each module that a fire crosses, in a beat and in a worker."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = set(re.findall(r"[\w/]+\.py\b", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_architecture_names_what_a_fire_crosses(pool: str, tmp_path: Path) -> None:
    crossed = fire(pool, tmp_path)
    assert {"beat/dispatch.py", "publish/publisher.py"} <= crossed["beat"]
    assert {"worker/admission.py", "worker/lease/outcomes.py"} <= crossed["worker"]
    assert {side: sorted(modules - NAMED) for side, modules in crossed.items()} == {"beat": [], "worker": []}


def fire(pool: str, folder: Path) -> dict[str, set[str]]:
    """Return the modules that one fire crosses, by the side that crosses them."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.process.one_fire", pool]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    sides = json.loads(done.stdout.splitlines()[-1])
    return {
        side: {name for name in names if not name.startswith(("brokers/", "events/"))} for side, names in sides.items()
    }
