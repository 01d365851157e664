"""Shops on each combination of database and broker."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.workers import Lane, WorkerShop, assert_one_start_each
from tests.support.beats import Shop, shop
from tests.support.brokers import place

MakeShop = Callable[..., Shop]
MakeWorkers = Callable[[Lane], WorkerShop]


@pytest.fixture
def make_shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeShop]:
    """Make a shop on a database and a broker of its own: `make_shop("postgresql", "redis")`."""
    with contextlib.ExitStack() as stack:

        def make(database: str, broker: str) -> Shop:
            folder, url = _home(tmp_path, f"shop-{database}-{broker}", database, request)
            return stack.enter_context(shop(folder, url, stack.enter_context(place(broker))))

        yield make


@pytest.fixture
def make_workers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeWorkers]:
    """Make a shop for workers on a lane.

    Whatever happens there, no attempt may begin twice or without its lease.
    """
    with workers(tmp_path, request) as make:
        yield make


@pytest.fixture(scope="module")
def make_shared_workers(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[MakeWorkers]:
    """Yield the same for shops that several tests use."""
    with workers(tmp_path_factory.mktemp("workers"), request) as make:
        yield make


@contextlib.contextmanager
def workers(folder: Path, request: pytest.FixtureRequest) -> Iterator[MakeWorkers]:
    """Shops for workers, until the end of the fixture that asks."""
    with contextlib.ExitStack() as stack:

        def make(lane: Lane) -> WorkerShop:
            where = stack.enter_context(place(lane.broker))
            made = WorkerShop(*_home(folder, f"{'-'.join(lane)}-{where.prefix}", lane.database, request), where)
            stack.callback(made.close)
            made.store.migrate()
            made.write_app(lane)
            stack.callback(assert_one_start_each, made)
            return made

        yield make


def _home(where: Path, name: str, database: str, request: pytest.FixtureRequest) -> tuple[Path, str]:
    folder = where / name
    folder.mkdir()
    if database != "sqlite":
        return folder, request.getfixturevalue(f"{database}_database")()
    return folder, f"sqlite:///{folder / 'beat.db'}"
