"""Each bug that `make mutants` plants in a store fits the text of each database.

`make mutants DATABASE=mysql` plants them; it is no part of the suite.
"""

from pathlib import Path

import pytest

from tests.contract.planted import DATABASES, OF_A_STORE, PLANTED, planted
from tests.contract.planted_one_offs import BUGS
from tests.simulation.mutants import Mutant
from tests.simulation.mutate import ROOT


@pytest.mark.parametrize("mutant", BUGS, ids=lambda mutant: mutant.name)
def test_each_patch_of_a_newer_bug_fits_the_text_in_one_place(mutant: Mutant) -> None:
    for patch in mutant.patches:
        text = Path(ROOT, patch.file).read_text(encoding="utf-8")
        assert text.count(patch.old) == 1, f"change this mutant in planted_one_offs.py, too: {patch.file}"
        assert patch.new != patch.old


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("mutant", OF_A_STORE, ids=lambda mutant: mutant.name)
def test_each_patch_fits_the_text_of_the_database_in_one_place(mutant: Mutant, database: str) -> None:
    patches = planted(mutant, database)
    for patch in () if isinstance(patches, str) else patches:
        text = Path(ROOT, patch.file).read_text(encoding="utf-8")
        assert text.count(patch.old) == 1, f"change this mutant in planted.py, too: {patch.file} has other text"
        assert patch.new != patch.old


def test_each_bug_of_a_store_is_planted_or_meaningless_in_each_database() -> None:
    names = {mutant.name for mutant in OF_A_STORE}
    for database, patches in PLANTED.items():
        assert patches.keys() == names, database


def test_the_page_has_the_verdict_of_each_bug_in_each_database() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = page.partition("## Planted bugs, database by database")[2].partition("\n## ")[0]
    named = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.count(" | ") == 4]
    assert named[1:] == [mutant.name for mutant in OF_A_STORE]
