"""A simulated world silences the logs of this process; other tests want to read them."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    before = logging.root.manager.disable
    yield
    logging.disable(before)
