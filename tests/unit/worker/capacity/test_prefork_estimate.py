"""So many messages ask ahead as will have their slots within 35 ms, if tasks go on as they did."""

from celery_sqlbeat.worker.capacity.prefork import CapacityEstimate


class Line:
    """Slots that come at times of the test's."""

    def __init__(self) -> None:
        self.now = 50.0
        self.foresight = CapacityEstimate(lambda: self.now)

    def slots(self, count: int, gap: float, others_wait: bool = True) -> int:
        for _ in range(count):
            self.now += gap
            self.foresight.capacity_came(others_wait)
        return self.foresight.soon()


def test_nobody_asks_ahead_before_anything_is_known() -> None:
    assert Line().foresight.soon() == 0


def test_the_shorter_the_tasks_the_more_ask_ahead() -> None:
    assert Line().slots(100, 0.001) in (34, 35)
    assert Line().slots(100, 0.005) in (6, 7)
    assert Line().slots(100, 0.040) == 0
    assert Line().slots(400, 0.00001) == 64


def test_when_a_slot_is_late_nobody_counts_on_it_any_more() -> None:
    line = Line()
    line.slots(100, 0.001)
    line.now += 0.010
    assert line.foresight.soon() == 3
    line.now += 0.030
    assert line.foresight.soon() == 0


def test_one_long_task_among_short_ones_is_soon_forgotten() -> None:
    line = Line()
    line.slots(100, 0.001)
    assert line.slots(1, 2.0) == 0
    assert line.slots(60, 0.001) >= 6


def test_a_gap_in_which_nobody_waited_says_nothing() -> None:
    line = Line()
    line.slots(100, 0.001)
    assert line.slots(1, 0.001, others_wait=False) >= 30
    line.now += 0.5
    assert line.foresight.soon() == 0
    assert line.slots(1, 0.0) >= 30


def test_after_a_rest_nobody_knows_what_comes() -> None:
    line = Line()
    line.slots(100, 0.001)
    line.slots(1, 0.001, others_wait=False)
    assert line.slots(1, 60.0) == 0
