"""A worker tells which queues it consumes, and for how long it has not consumed others."""

from celery_sqlbeat.model.nodes import Queues, read_queues
from celery_sqlbeat.worker.membership import Consumption

MEMORY = 3600.0


class Watch:
    """What a worker tells at an instant."""

    def __init__(self) -> None:
        self.now = 50.0
        self.consumption = Consumption(MEMORY, lambda: self.now)

    def at(self, now: float, *names: str) -> Queues:
        self.now = now
        return read_queues(self.consumption.tell(names))


def test_a_queue_that_is_left_is_told_with_the_time_since_then() -> None:
    watch = Watch()
    assert watch.at(100, "a", "b") == Queues({"a", "b"}, {})
    assert watch.at(130, "a") == Queues({"a"}, {"b": 0.0})
    assert watch.at(160, "a") == Queues({"a"}, {"b": 30.0})
    assert watch.at(190) == Queues(set(), {"a": 0.0, "b": 60.0})


def test_a_queue_that_is_consumed_again_was_never_left() -> None:
    watch = Watch()
    watch.at(100, "a")
    watch.at(110)
    assert watch.at(120, "a") == Queues({"a"}, {})
    assert watch.at(130) == Queues(set(), {"a": 0.0})


def test_a_queue_is_forgotten_when_no_beat_remembers_it_any_more() -> None:
    watch = Watch()
    watch.at(100, "a", "b")
    watch.at(100, "b")
    assert watch.at(100 + MEMORY - 1, "b") == Queues({"b"}, {"a": MEMORY - 1})
    assert watch.at(100 + MEMORY, "b") == Queues({"b"}, {})


def test_who_has_left_nothing_tells_a_plain_list_of_names() -> None:
    assert Consumption(MEMORY).tell(["b", "a"]) == '["a", "b"]'
    assert read_queues(None) == read_queues("[]") == Queues(set(), {})
