"""A trouble is told at once, and then after as long again as it has lasted, a minute at most."""

import itertools

import pytest

from celery_sqlbeat.beat.duties import LogThrottle


class Beat:
    """One that tries in vain, by a clock of the test's."""

    def __init__(self) -> None:
        self.now = 50.0
        self.throttle = LogThrottle(lambda: self.now)

    def tells(self, seconds: float, every: float, text: str = "refused") -> list[float]:
        """When it is told, in seconds from now."""
        began, told = self.now, []
        while self.now < began + seconds:
            if self.throttle.admits(text):
                told.append(round(self.now - began, 3))
            self.now += every
        return told


def test_it_is_told_after_as_long_again() -> None:
    assert Beat().tells(100, every=0.5) == [0, 0.5, 1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("every", [0.5, 7.0, 15.0])
def test_an_outage_of_an_hour_is_told_once_a_minute(every: float) -> None:
    told = Beat().tells(3600, every)
    assert 50 <= len(told) <= 70 and max(b - a for a, b in itertools.pairwise(told)) < 60 + every


def test_another_trouble_is_told_at_once() -> None:
    beat = Beat()
    beat.tells(100, every=1.0)
    assert beat.tells(1, every=1.0, text="no such password") == [0]


def test_after_a_success_the_same_trouble_is_another_one() -> None:
    beat = Beat()
    beat.tells(100, every=1.0)
    beat.throttle.reset()
    assert beat.tells(5, every=0.5) == [0, 0.5, 1, 2, 4]
