"""Each row of the table.

Held by what is installed, and missed where upstream renames it or changes its parameters.
"""

import functools
import importlib
import logging
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import pytest

from celery_sqlbeat.celery_bridge import symbol_row, symbols
from celery_sqlbeat.celery_bridge.symbol_row import Symbol
from celery_sqlbeat.celery_bridge.symbols import LIBRARIES, SYMBOLS, CheckedSymbol, is_on, lacking, refusal, verify

RENAMED = "renamed_upstream"


@pytest.fixture(autouse=True)
def everything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols.load_everything()
    monkeypatch.setattr(symbols, "_off", {})
    monkeypatch.setattr(symbols, "_told", set())


def named(symbol: Symbol) -> str:
    return f"{symbol.part} {symbol.path}"


def owner_and_name(path: str) -> tuple[Any, str]:
    """Where a symbol is; of a class the first one of its bases that has it."""
    module, _, names = path.partition(":")
    *above, name = names.split(".")
    owner: Any = importlib.import_module(module)
    for each in above:
        owner = getattr(owner, each)
    if isinstance(owner, type):
        owner = next(kind for kind in owner.__mro__ if name in vars(kind))
    return owner, name


def code_with(code: CodeType, name: str) -> CodeType:
    """Return the code with this attribute renamed, in functions within it, too."""
    constants = tuple(code_with(one, name) if isinstance(one, CodeType) else one for one in code.co_consts)
    names = tuple(RENAMED if one == name else one for one in code.co_names)
    return code.replace(co_names=names, co_consts=constants)


def rename(symbol: Symbol, patch: pytest.MonkeyPatch) -> None:
    """Do to a loaded module what upstream would do in its source."""
    path = symbol.path.partition(" > ")[0]
    if symbol.kind == "named":
        function = symbol_row._function(symbol_row.found_at(path))
        assert function is not None
        patch.setattr(function, "__code__", code_with(function.__code__, symbol.name))
    else:
        owner, name = owner_and_name(path)
        module, _, names = path.partition(":")
        found = symbol_row.found_at(f"{module}:{names.rpartition('.')[0]}") if "." in names else owner
        for each in found.__mro__ if isinstance(found, type) else [owner]:
            if name in vars(each):
                patch.delattr(each, name)


def checked_of(symbol: Symbol) -> CheckedSymbol:
    """Verify one row alone; that all rows hold, another test says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symbols, "SYMBOLS", [symbol])
        (found,) = verify(symbol.part)
    return found


def test_what_is_installed_holds_every_row() -> None:
    assert [each for each in verify("worker", "beat") if each.difference is not None or not each.is_loaded] == []


def test_no_row_stands_twice() -> None:
    assert len({named(each) for each in SYMBOLS}) == len(SYMBOLS)
    assert {each.library for each in SYMBOLS} == LIBRARIES.keys()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_renamed_symbol_is_missed(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for symbol in SYMBOLS:
        if symbol.library == library:
            assert_missed_when_renamed(symbol, monkeypatch)


def assert_missed_when_renamed(symbol: Symbol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "_off", {})
    with monkeypatch.context() as patch:
        rename(symbol, patch)
        found = checked_of(symbol)
        is_required = bool(lacking([found]))
    name = symbol.name.rpartition(".")[2]
    assert found.difference is not None and found.difference.startswith("has no ") and name in found.difference
    assert is_required == (symbol.feature is None)
    if symbol.feature is not None:
        assert not is_on(symbol.feature)
        return
    line = refusal([found], "0.2")
    known = LIBRARIES[symbol.library]
    assert line.startswith(f"celery-sqlbeat 0.2 knows {known.shown} {known.oldest} to {known.newest}; ")
    assert "\n" not in line and name in line and "upgrade celery-sqlbeat" in line


CALLED = [each for each in SYMBOLS if each.kind in ("called", "replaced")]


def function_of(symbol: Symbol) -> FunctionType:
    function = symbol_row._function(symbol_row.found_at(symbol.path))
    assert function is not None
    return function


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_signature_is_seen(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for symbol in CALLED:
        if symbol.library == library and symbol.takes != ("",):
            assert_another_signature_is_seen(symbol, monkeypatch)


def assert_another_signature_is_seen(symbol: Symbol, monkeypatch: pytest.MonkeyPatch) -> None:
    function = function_of(symbol)
    known = [name.strip("* ") for name in symbol.takes[0].split(",")]
    names = function.__code__.co_varnames
    (changed,) = [name for name in known[-1:] if name in names]
    renamed = tuple(RENAMED if name == changed else name for name in names)
    with monkeypatch.context() as patch:
        patch.setattr(function, "__code__", function.__code__.replace(co_varnames=renamed))
        patch.setattr(function, "__defaults__", None)
        found = checked_of(symbol)
    assert found.difference is not None and RENAMED in found.difference and "was expected" in found.difference


def made(source: str) -> FunctionType:
    """Return a function as upstream would have it."""
    namespace: dict[str, Any] = {"__name__": "celery.made"}
    exec(source, namespace)
    found: FunctionType = namespace["made"]
    return found


def row(kind: str, *takes: str) -> Symbol:
    return SYMBOLS[0]._replace(kind=kind, takes=takes)  # type: ignore[arg-type]


def test_what_is_called_may_take_more_that_may_be_left_out() -> None:
    called = row("called", "self, one")
    assert symbol_row._fits(called, made("def made(self, one): ..."))
    assert symbol_row._fits(called, made("def made(self, one, more=None, *rest, word=1, **others): ..."))
    assert not symbol_row._fits(called, made("def made(self, one, more): ..."))
    assert not symbol_row._fits(called, made("def made(self, one, *, word): ..."))
    assert not symbol_row._fits(called, made("def made(one, self): ..."))


def test_what_is_replaced_takes_what_is_known_and_no_more() -> None:
    replaced = row("replaced", "self, one", "self, one, two")
    assert symbol_row._fits(replaced, made("def made(self, one): ..."))
    assert symbol_row._fits(replaced, made("def made(self, one, two=None): ..."))
    assert not symbol_row._fits(replaced, made("def made(self, one, two=None, three=None): ..."))


def test_a_tools_wrapper_is_no_other_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    (symbol,) = [each for each in SYMBOLS if each.path == "celery.app.trace:build_tracer"]
    original = symbol_row.found_at(symbol.path)

    def bare(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    for wrapper in (bare, functools.wraps(original)(bare)):
        with monkeypatch.context() as patch:
            patch.setattr(*owner_and_name(symbol.path), wrapper)
            assert checked_of(symbol).difference is None


@pytest.mark.parametrize(
    ("installed", "remedy"),
    [("5.8.1", "celery<5.8"), ("6.0.0rc1", "celery<5.8"), ("5.7.3", "celery<5.7.3"), ("5.2.7", "celery>=5.3")],
)
def test_the_remedy_is_a_version_that_is_known(installed: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "version_of", lambda _: installed)
    line = refusal([CheckedSymbol(SYMBOLS[0], "has no WorkController._process_task", True)], "0.2")
    assert line == (
        f"celery-sqlbeat 0.2 knows Celery 5.3 to 5.7; {installed} has no WorkController._process_task: "
        f"install '{remedy}' or upgrade celery-sqlbeat"
    )


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "celery_sqlbeat"):
        yield caplog


def test_a_fast_path_that_is_off_is_said_once(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    (symbol,) = [each for each in SYMBOLS if each.path.endswith("QoS._remove_from_indices")]
    with monkeypatch.context() as patch:
        rename(symbol, patch)
        verify("worker")
    for _ in range(2):
        symbols.tell_what_is_off("worker")
        symbols.tell_what_is_off("beat")
    assert [record.getMessage() for record in log.records] == [
        "a fast path is off, as a library lacks what it needs: "
        f'feature="{symbol.feature}" reason="{symbols.shown_version("kombu")} has no QoS._remove_from_indices, '
        f'so that {symbol.lost}"'
    ]
