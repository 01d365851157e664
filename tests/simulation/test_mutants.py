"""A little of `make mutants`.

Every patch still fits the code, and some of the bugs are caught here already.
"""

from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.mutate import ROOT, hunt

QUICK = (
    "claim ignores LockedBy",
    "slot record and claim in two transactions",
    "next slot from the end of the run under from_start",
    "mark-published moves a run backwards",
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_patch_fits_the_code_in_one_place(mutant: Mutant) -> None:
    for patch in mutant.patches:
        text = Path(ROOT, patch.file).read_text(encoding="utf-8")
        assert text.count(patch.old) == 1, f"change this mutant in mutants.py, too: {patch.file} no longer has its text"
        assert patch.new != patch.old


def test_no_two_mutants_share_a_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 28


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_simulation_catches_a_bug(name: str) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    result = hunt(mutant, seed=1, most_worlds=5)
    assert result.caught is not None, result.said
