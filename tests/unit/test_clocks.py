"""Clocks, chance and environment variables come from `environment.py` alone."""

import ast
from collections.abc import Iterator

import pytest

from tests.support.package_source import sources, tree_of

CLOCKS = {name + suffix for name in ("time", "monotonic", "perf_counter") for suffix in ("", "_ns")}
MEMBERS = {"time": CLOCKS, "os": {"environ", "environb", "getenv", "getenvb", "urandom"}}
MODULES = {"random", "secrets"}
CONSTRUCTORS = {"datetime": {"now", "utcnow", "today"}, "date": {"today"}, "uuid": {"uuid1", "uuid4"}}


def taken(tree: ast.AST) -> Iterator[str]:
    """Yield what a module takes from the machine by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if node.module in MODULES:
                yield f"{node.module}"
            for name in sorted(names & (MEMBERS.get(node.module or "", set()) | {"uuid1", "uuid4"})):
                yield f"{node.module}.{name}"
        elif isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if node.attr in MEMBERS.get(owner, set()) | CONSTRUCTORS.get(owner, set()):
                yield f"{owner}.{node.attr}"


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "from secrets import token_hex",
        "from time import monotonic",
        "from os import environ",
        "from uuid import uuid4",
        "import os\nos.environ['X']",
        "import time\ndef wait(clock=time.monotonic): ...",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import uuid\nuuid.uuid4()",
    ],
)
def test_the_search_finds_each_way_to_the_machine(source: str) -> None:
    assert list(taken(ast.parse(source)))


def test_the_search_lets_sleeping_and_arguments_pass() -> None:
    assert not list(taken(ast.parse("import time\ntime.sleep(1)\nrow.now\nschedule.now()\nfrom uuid import UUID")))


def test_only_the_environment_takes_clocks_chance_and_variables() -> None:
    found = {path: sorted(set(taken(tree_of(path)))) for path in sources()}
    assert found.pop("environment.py")
    assert {path: names for path, names in found.items() if names} == {}
