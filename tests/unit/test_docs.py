"""The pages that come from the code say what the code says."""

import re
import runpy
from pathlib import Path

import pytest

from celery_sqlbeat.config.settings import NAMES
from celery_sqlbeat.store.sql.session import load

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_sqlbeat"
TESTS = {path.name for path in (ROOT / "tests").rglob("*.py")}
GENERATED = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PROSE = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
HISTORY = {"CHANGELOG.md", "0012-rooms.md"}  # they name what was there
STEPS = [
    (name, re.findall(r"`([\w/.]+)`", files_and_statements))
    for name, files_and_statements in re.findall(r"^\| \*\*(\w+)\*\* \|([^|]*\|[^|]*)\|", ARCHITECTURE, re.MULTILINE)
]


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == GENERATED[name](), "run make docs"


def test_the_files_of_the_architecture_exist() -> None:
    named = re.findall(r"[\w/]+\.py\b", ARCHITECTURE)
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


def test_the_architecture_shows_each_part_of_the_top_level() -> None:
    shown = re.findall(r"^  (\w+)(?:/|\.py) ", ARCHITECTURE, re.MULTILINE)
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(shown) == parts - {"__init__"}
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[0])
def test_a_step_of_a_fire_runs_its_statements_from_its_files(step: tuple[str, list[str]]) -> None:
    _, spans = step
    sources = "".join((PACKAGE / span).read_text(encoding="utf-8") for span in spans if span.endswith(".py"))
    blocks = [span for span in spans if not span.endswith(".py")]
    assert [block for block in blocks if f'"{block}"' not in sources] == []
    assert set(blocks) <= set(load("sqlite"))


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_every_relative_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", [path for path in PROSE if path.name not in HISTORY], ids=lambda path: path.name)
def test_every_module_that_is_named_exists(path: Path) -> None:
    named = re.findall(r"`([\w/]+\.py)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not is_a_module(name)] == []


def is_a_module(name: str) -> bool:
    """Tell whether the package or the repository has this file, or a test this name."""
    return (PACKAGE / name).is_file() or (ROOT / name).is_file() or ("/" not in name and name in TESTS)
