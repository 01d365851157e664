"""Imports look one way: what decides never knows what stores, and what stores never knows what runs."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_sqlbeat

PACKAGE = Path(celery_sqlbeat.__file__).parent
LAYERS = [  # from the lowest; a room may import from lower layers, and from its own only where VALUES says so
    {"errors"},
    {
        "brokerage",
        "checks",
        "details",
        "durations",
        "embedded",
        "ids",
        "knowledge",
        "masking",
        "queues",
        "roster",
        "unpatched",
    },
    {"config", "machine", "model", "options", "policy", "url"},
    {"schedule"},
    {"definition", "lifecycle"},
    {"audit", "long_runs", "pace", "planning"},
    {"store"},
    {"results"},
    {"beat", "worker"},
    {"demo", "entry", "handle"},
    {"diagnosis", "transfer"},
    {"cli"},
]
VALUES = LAYERS[2]  # plain values and the reading of them: the settings hold policies and a URL
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(source: str) -> Iterator[str]:
    """Yield the rooms of this package that a source imports, also those it imports late."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "celery_sqlbeat":
            names = [f"celery_sqlbeat.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can read them"
            names = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("celery_sqlbeat."))


def is_allowed(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    if RANK[importer] == RANK[imported]:
        return importer in VALUES
    return RANK[importer] > RANK[imported]


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_below(path: Path) -> None:
    importer = room_of(path)
    assert importer in RANK, f"give {importer} its place in LAYERS"
    for imported in imported_rooms(path.read_text()):
        if imported not in RANK:  # a name of the package itself, like __version__
            assert not (PACKAGE / imported).exists() and not (PACKAGE / f"{imported}.py").exists()
            continue
        assert is_allowed(importer, imported), f"{importer} imports {imported}"


def test_the_rule_tells_up_from_down() -> None:
    assert is_allowed("cli", "store") and is_allowed("store", "schedule") and is_allowed("config", "url")
    assert not is_allowed("schedule", "store") and not is_allowed("beat", "worker") and not is_allowed("errors", "url")
    assert list(imported_rooms("def f():\n    from celery_sqlbeat.store.sqlite import x")) == ["store"]


FORBIDDEN = {"celery", "kombu", "psycopg", "pyodbc", "random", "sqlite3", "time"}


def roots_imported(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {
        name.split(".")[0] for name in plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    }


@pytest.mark.parametrize("room", ["schedule", "lifecycle", "model", "policy", "definition", "planning", "audit"])
def test_what_decides_knows_no_clock_no_driver_and_no_celery(room: str) -> None:
    for path in [path for path in SOURCES if room_of(path) == room]:
        tree = ast.parse(path.read_text())
        bridge = {"celery"} if path.name == "stock.py" else set()  # converts from and to Celery's own schedules
        assert not roots_imported(tree) & (FORBIDDEN - bridge), path.name
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "datetime":
                assert node.attr not in {"now", "utcnow", "today"}, f"{path.name} reads a clock"
