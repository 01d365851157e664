"""`make mutants DATABASE=mysql`: plant bugs in a copy of a store, and run the contract on each."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.contract.planted import DATABASES, OF_A_STORE, planted
from tests.contract.planted_one_offs import BUGS
from tests.simulation.mutants import Mutant
from tests.simulation.mutate import ROOT, applied

Lots = tuple[tuple[str, ...], ...]
# The last lot takes minutes, and is run where the first one has caught nothing.
NEWER: Lots = (
    ("store_contract", "places", "planning"),
    ("api_one_offs", "api_cancel", "locks", "interleavings", "races"),
)
"""The lots for bugs in one-offs and in what came with them."""
LOTS: Lots = (
    ("claiming", "fences", "starting", "recovery", "queue", "outcome", "store_contract", "admin"),
    ("races", "connections", "interleavings", "stateful"),
)
_SERVERS = {"postgresql": "postgresql", "mysql": "mariadb", "mssql": "mssql,odbc"}
_CHOSEN = {"postgresql": "postgresql and not pooled"}
_FAILED = re.compile(r"^FAILED tests/(?:contract/)?(.+?)(?: - |$)", re.MULTILINE)
_NO_SQL = re.compile(r"syntax error|SyntaxError|error in your SQL syntax|UndefinedColumn|Unknown column", re.IGNORECASE)
CONTROL = Mutant("no bug", ())


class Verdict(NamedTuple):
    """What became of a bug in one database."""

    mutant: Mutant
    caught: str | None
    """By which test."""
    meaningless: str | None
    """Why the bug cannot be there."""
    seconds: float
    said: str = ""


def hunt(mutant: Mutant, database: str, lots: Lots = LOTS) -> Verdict:
    """Plant a bug, and run the contract on this database until a test fails."""
    began = time.monotonic()
    patches = planted(mutant, database) if mutant is not CONTROL else ()
    if isinstance(patches, str):
        return Verdict(mutant, None, patches, 0.0)
    with tempfile.TemporaryDirectory(prefix="sqlbeat_test_") as name:
        folder = Path(name)
        applied(mutant._replace(patches=patches), folder)
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        caught, said = None, ""
        for lot in lots:
            caught, said = _run(folder, database, lot)
            if caught is not None:
                break
    return Verdict(mutant, caught, None, time.monotonic() - began, said)


def _run(folder: Path, database: str, lot: tuple[str, ...]) -> tuple[str | None, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.mutants", "--inside", _CHOSEN.get(database, database), *lot],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SQLBEAT_REQUIRE": _SERVERS.get(database, ""),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    failed = _FAILED.search(said)
    if done.returncode not in (0, 1) or (done.returncode == 1) is not (failed is not None) or _NO_SQL.search(said):
        raise RuntimeError(f"the bug is badly planted, or nothing was tested:\n{said[-4000:]}")
    return (failed[1] if failed else None), said


def _inside(chosen: str, lot: list[str]) -> int:
    """In a process that has the copy."""
    import pytest

    import celery_sqlbeat

    assert Path(celery_sqlbeat.__file__).is_relative_to(Path.cwd()), "the copy with the bug is not what runs"
    files = [str(file) for name in lot for file in _files(name)]
    if any(not file.startswith("tests/contract") for file in files):
        chosen += " or test_places or test_planning"  # they run on no database, or on SQLite
    options = ["--quiet", "--exitfirst", "--tb=short", "-p", "no:cacheprovider", "-k", chosen]
    return pytest.main([*options, *files])


def _files(name: str) -> list[Path]:
    """Return the files of tests of this name, wherever the quick ones or the contract's are."""
    folders = ("tests/contract", "tests/unit/worker/lease", "tests/properties")
    found = [Path(folder, f"test_{name}.py") for folder in folders]
    return [file for file in found if file.exists()]


def main() -> int:
    """Hunt all bugs, or those whose name holds a word; returns the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--database", choices=DATABASES, default="postgresql")
    parser.add_argument("--name", default="", help="a part of the name")
    parser.add_argument("--inside", nargs="+", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        return _inside(given.inside[0], given.inside[1:])
    if hunt(CONTROL, given.database, LOTS[:1]).caught is not None:
        raise RuntimeError(f"the contract fails on {given.database} without any bug")
    wanted = [(mutant, LOTS) for mutant in OF_A_STORE if given.name in mutant.name]
    if given.database == "sqlite":
        wanted += [(mutant, NEWER) for mutant in BUGS if given.name in mutant.name]
    survivors = 0
    for mutant, lots in wanted:
        verdict = hunt(mutant, given.database, lots)
        text = verdict.caught or verdict.meaningless or "SURVIVED"
        print(f"{mutant.name}: {text} [{verdict.seconds:.0f} s]", flush=True)
        survivors += verdict.caught is None and verdict.meaningless is None
    print(f"{len(wanted) - survivors} of {len(wanted)} bugs were caught on {given.database}, or mean nothing there")
    return 1 if survivors or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
