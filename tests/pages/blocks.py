"""Read the fenced blocks of a page.

A block that is not to be run says why, in a comment right above it:

<!-- not run by the tests: it needs a server of Azure -->
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ELSEWHERE = {  # pages whose blocks have tests of their own
    "docs/dba.md": "tests/infra/test_dba_page.py",
    "docs/moving.md": "tests/transfer/test_page.py",
    "example_project/README.md": "tests/process/test_demo.py",
}
MEASURED = {"docs/benchmarks.md"}  # what they show is what a machine printed on one day

_FENCE = re.compile(
    r"(?:^<!-- not run by the tests: (?P<reason>.+?) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """What stands between two fences."""

    language: str
    text: str
    line: int
    not_run_because: str | None


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page, in their order."""
    return [
        Block(
            found["language"].strip(), found["text"], page.count("\n", 0, found.start("language")) + 1, found["reason"]
        )
        for found in _FENCE.finditer(page)
    ]


def commands_of(block: Block) -> list[str]:
    """Return the commands of a console block without remarks; lines of output have no prompt."""
    return [re.sub(r"\s{2,}#.*$", "", line[2:]).strip() for line in block.text.splitlines() if line.startswith("$ ")]


def pages() -> list[str]:
    """All pages whose blocks are run here."""
    found = [ROOT / "README.md", ROOT / "example_project/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [name for path in found if (name := path.relative_to(ROOT).as_posix()) not in ELSEWHERE.keys() | MEASURED]
