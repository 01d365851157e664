"""What a worker tells of other schedulers."""

from celery_sqlbeat.model import nodes
from celery_sqlbeat.model.nodes import Stranger
from celery_sqlbeat.worker.receipt import Strangers


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_message_of_celerys_beat_is_told_with_its_age() -> None:
    clock = Clock()
    seen = Strangers(clock)
    seen.saw("shop.add", {"celery_beat_task": True, "origin": "gen7@host", "id": "x"})
    clock.now = 3.0
    assert seen.told == [Stranger("shop.add", None, "gen7@host", 3.0)]
    assert nodes.strangers(nodes.tell_details([], seen.told)) == seen.told
    assert nodes.unleasable(nodes.tell_details(["a"], seen.told)) == {"a"}


def test_a_single_run_from_an_admin_page_is_no_scheduler() -> None:
    seen = Strangers(Clock())
    headers = {"periodic_task_name": "nightly"}
    seen.saw("shop.add", headers)
    assert seen.told == []
    seen.saw("shop.add", headers)
    assert [one.name for one in seen.told] == ["nightly"]


def test_ordinary_messages_and_ours_are_none() -> None:
    seen = Strangers(Clock())
    for headers in (None, {}, {"id": "x"}, {"celery_beat_task": True, "periodic_task_name": "a", "sqlbeat": {"v": 1}}):
        seen.saw("shop.add", headers)
    assert seen.told == []


def test_of_many_the_latest_are_remembered() -> None:
    clock = Clock()
    seen = Strangers(clock)
    for at in range(50):
        clock.now = at
        seen.saw(f"shop.task_{at}", {"celery_beat_task": True})
    assert [one.task for one in seen.told] == [f"shop.task_{at}" for at in range(30, 50)]


def test_what_another_release_tells_may_be_anything() -> None:
    for text in (None, "", "no", "[]", '{"strangers": 3}', '{"strangers": [3, {}, {"task": 1}]}'):
        assert nodes.strangers(text) == []
