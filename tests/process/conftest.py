"""Shops on each combination of database and broker."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.beats import Shop, shop
from tests.process.brokers import place

MakeShop = Callable[..., Shop]


@pytest.fixture
def make_shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeShop]:
    """Make a shop on a database and a broker of its own: `make_shop("postgresql", "redis")`."""
    with contextlib.ExitStack() as stack:

        def make(database: str, broker: str) -> Shop:
            folder = tmp_path / f"shop-{database}-{broker}"
            folder.mkdir()
            url = f"sqlite:///{folder / 'beat.db'}"
            if database == "postgresql":
                url = request.getfixturevalue("postgresql_database")()
            return stack.enter_context(shop(folder, url, stack.enter_context(place(broker))))

        yield make
