"""`make mutants`: patch a copy of the package, and simulate until an invariant catches it."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.simulation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
MOST_WORLDS = 150  # that a mutant may survive
_CAUGHT = "caught"


class Result(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    caught: str | None
    """By which seed and which invariant."""
    seconds: float
    said: str


def applied(mutant: Mutant, folder: Path) -> None:
    """Make a copy of the package with this bug in it."""
    nothing = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "celery_sqlbeat", folder / "celery_sqlbeat", ignore=nothing)
    shutil.copytree(ROOT / "sql", folder / "sql", ignore=nothing)
    for patch in mutant.patches:
        path = folder / patch.file
        text = path.read_text(encoding="utf-8")
        if text.count(patch.old) != 1:
            raise ValueError(f"{mutant.name}: {patch.file} has {text.count(patch.old)} times {patch.old!r}")
        path.write_text(text.replace(patch.old, patch.new), encoding="utf-8")
    if any(patch.file.startswith("sql/source/") for patch in mutant.patches):
        subprocess.run([sys.executable, "-m", "sql.render"], cwd=folder, env=_first(folder), check=True)


def _first(folder: Path) -> dict[str, str]:
    """Return an environment in which the copy comes before the installed package.

    The tests themselves are those of this checkout.
    """
    path = os.pathsep.join([str(folder), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def hunt(mutant: Mutant, seed: int, most_worlds: int = MOST_WORLDS) -> Result:
    """Simulate world after world with this bug."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        applied(mutant, Path(folder))
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation.mutate", "--inside", folder, str(seed), str(most_worlds)],
            env=_first(Path(folder)),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    lines = done.stdout.strip().splitlines()
    caught = lines[-1].removeprefix(_CAUGHT + " ") if lines and lines[-1].startswith(_CAUGHT) else None
    return Result(mutant, caught, time.monotonic() - began, (done.stdout + done.stderr)[-2000:])


def _inside(folder: str, seed: int, most_worlds: int) -> int:
    """In a process that has the copy."""
    import celery_sqlbeat
    from tests.simulation import campaign

    assert celery_sqlbeat.__file__.startswith(folder), "the copy with the bug is not what runs"
    for number in range(seed, seed + most_worlds):
        found = campaign.live(number).found
        if found is not None:
            print(f"{_CAUGHT} by seed {found.seed}, step {found.steps}: {found.invariant}: {found.text}")
            return 0
    return 1


def main() -> int:
    """Hunt all mutants, or those whose name holds a word; returns the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--name", default="", help="a part of the name")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--inside", nargs=3, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        folder, seed, most_worlds = chosen.inside
        return _inside(folder, int(seed), int(most_worlds))
    wanted = [mutant for mutant in MUTANTS if chosen.name in mutant.name]
    survivors = 0
    with ThreadPoolExecutor(chosen.processes) as pool:
        for result in pool.map(lambda mutant: hunt(mutant, chosen.seed), wanted):
            number = MUTANTS.index(result.mutant) + 1
            said = result.caught or f"SURVIVED {MOST_WORLDS} worlds\n{result.said}"
            print(f"({number}) {result.mutant.name}: {said} [{result.seconds:.0f} s]", flush=True)
            survivors += result.caught is None
    print(f"{len(wanted) - survivors} of {len(wanted)} mutants were caught")
    return 1 if survivors or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
