"""What a look makes of errors while the broker counts consumers, with a connection of the test."""

from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_sqlbeat.celery_bridge.inspect_workers import QueueConsumers, _count

LOOK = QueueConsumers(0.0, ())


class Redis:
    """A connection whose every command fails."""

    connection = None
    connection_errors = (ConnectionError,)
    driver_type = "redis"

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.transport = self

    @property
    def default_channel(self) -> Any:
        raise self._error


def test_a_broker_that_does_not_say_who_consumes_a_queue_leaves_it_to_the_workers_answers() -> None:
    assert _count(Redis(PermissionError("no CLIENT LIST")), "q", LOOK) == LOOK


@pytest.mark.parametrize("error", [ConnectionResetError("lost"), OperationalError("lost")])
def test_a_broker_that_goes_away_while_it_counts_has_said_nothing(error: Exception) -> None:
    with pytest.raises(type(error)):
        _count(Redis(error), "q", LOOK)
