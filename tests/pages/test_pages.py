"""Every command and snippet of README and docs is run, or says why it is not."""

import json
import re
from pathlib import Path

import click
import pytest
import yaml

from celery_sqlbeat.cli import sqlbeat
from celery_sqlbeat.config.settings import NAMES
from tests.pages.blocks import ELSEWHERE, ROOT, Block, blocks_of, commands_of, pages
from tests.pages.session import Session

SHOWN = {"text", "mermaid"}  # for people alone
RUN = {"console", "python", "sql"}
PROSE = [*pages(), *ELSEWHERE]


@pytest.mark.parametrize("page", pages())
def test_each_block_has_a_kind_that_is_looked_after(page: str) -> None:
    for block in blocks_of((ROOT / page).read_text()):
        place = f"{page}:{block.line}"
        if block.not_run_because is not None:
            assert len(block.not_run_because) > 20, f"{place}: a reason is a sentence"
        else:
            assert block.language in SHOWN | RUN | {"json", "yaml"}, f"{place}: {block.language!r} is not run"
        if block.language == "json":
            assert all(json.loads(line) for line in block.text.splitlines()), place
        elif block.language == "yaml":
            assert list(yaml.safe_load_all(block.text)), place


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages() if "```" in (ROOT / page).read_text()])
def test_the_commands_and_snippets_of_a_page_run_in_their_order(page: str, tmp_path: Path) -> None:
    session = Session(tmp_path)
    try:
        for block in blocks_of((ROOT / page).read_text()):
            if block.not_run_because is None and block.language in RUN:
                getattr(session, block.language)(block)
        session.still_running()
    finally:
        session.close()


def commands_named(text: str) -> list[list[str]]:
    """Our commands as prose names them in backticks.

    `explain NAME`, `celery -A app sqlbeat init --sql`.
    """
    spans = (span.removeprefix("celery -A app sqlbeat ").split() for span in re.findall(r"`([^`\n]+)`", text))
    return [words for words in spans if words and words[0] in sqlbeat.list_commands(click.Context(sqlbeat))]


@pytest.mark.parametrize("page", PROSE)
def test_commands_and_options_that_are_named_exist(page: str) -> None:
    for words in commands_named((ROOT / page).read_text()):
        command: click.Command | None = sqlbeat
        while words and isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, (page, words)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, (page, command.name, words)


def test_commands_in_prose_are_found() -> None:
    found = commands_named(
        "`explain NAME` and `celery -A app sqlbeat jobs delete X --force`, `check`, not `explained` "
    )
    assert found == [["explain", "NAME"], ["jobs", "delete", "X", "--force"], ["check"]]


@pytest.mark.parametrize("page", PROSE)
def test_settings_and_policies_that_are_named_exist(page: str) -> None:
    # Roles, a remote control, and a slip of the pen that is shown as one.
    others = {"sqlbeat_runner", "sqlbeat_reader", "sqlbeat_recall", "sqlbeat_lock_timout"}
    text = (ROOT / page).read_text()
    assert set(re.findall(r"`(sqlbeat_\w+)", text)) - others <= set(NAMES)


def test_every_page_is_reached_from_the_first() -> None:
    reached, to_read = set[Path](), [ROOT / "README.md"]
    while to_read:
        page = to_read.pop()
        if page in reached:
            continue
        reached.add(page)
        links = re.findall(r"\]\((?!https?:)([^)#]+\.md)", page.read_text())
        to_read += [(page.parent / link).resolve() for link in links]
    assert set((ROOT / "docs").rglob("*.md")) <= reached


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_the_other_pages_have_their_own_tests(page: str, test: str) -> None:
    assert Path(page).name in (ROOT / test).read_text() or page in (ROOT / test).read_text()
    assert (ROOT / page).exists()


PAGE = """
```console
$ celery -A app sqlbeat init         # a remark
the tables are up to date
```

<!-- not run by the tests: it needs a server of Azure -->
```powershell
./create.ps1
```
"""


def test_blocks_are_read_as_they_stand() -> None:
    one, two = blocks_of(PAGE)
    assert commands_of(one) == ["celery -A app sqlbeat init"]
    assert (one.line, one.not_run_because) == (2, None)
    assert (two.language, two.text, two.not_run_because) == (
        "powershell",
        "./create.ps1\n",
        "it needs a server of Azure",
    )


@pytest.mark.slow
def test_a_command_that_fails_fails_its_page(tmp_path: Path) -> None:
    session = Session(tmp_path)
    with pytest.raises(AssertionError, match="nosuch"):
        session.console(Block("console", "$ celery -A app sqlbeat explain nosuch\n", 1, None))
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        session.python(Block("python", "1 / 0\n", 1, None))
    with pytest.raises(AssertionError, match="say why"):
        session.console(Block("console", "$ rm -rf /nowhere\n", 1, None))
