"""The pages that come from the code say what the code says."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.config import NAMES
from celery_sqlbeat.store.statements import load

ROOT = Path(__file__).parents[2]
GENERATOR = runpy.run_path(str(ROOT / "docs" / "generate.py"))
GENERATED = GENERATOR["PAGES"]


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == GENERATED[name](), "run make docs"


@pytest.mark.parametrize("step", GENERATOR["WALK"], ids=lambda step: step.name)
def test_a_step_of_a_fire_is_where_the_map_shows_it(step: Any) -> None:
    """Its statements are run by one of its files, so that whoever looks for them finds them there."""
    sources = "".join((ROOT / "celery_sqlbeat" / name).read_text(encoding="utf-8") for name in step.files)
    assert [block for block in step.blocks if f'"{block}"' not in sources] == []
    assert set(step.blocks) <= set(load("sqlite"))


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")), ids=lambda path: path.name
)
def test_every_relative_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []
