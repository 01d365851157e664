"""What happens between the reading and the writing of an import: nothing of it is overwritten."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.beat_schedule.entries import CodeSchedule, read_entries
from celery_sqlbeat.beat_schedule.plan import SchedulePlanner
from celery_sqlbeat.beat_schedule.sync import import_code
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.model import LEFT_THE_CODE, CodeImport, CodeState, Node, PauseJob, ResumeJob
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.store.records import Imported
from celery_sqlbeat.store.sql.store import SqlStore
from tests.support.views import NodeView
from tests.support.world import NOON, World

LIVE = 100.0
RULES = Rules(Policies(), "UTC", 120.0, 3)
MINUTE = {"task": "app.minutely", "schedule": 60}
OTHER_CALL = {**MINUTE, "args": [1]}
HALF = {**MINUTE, "schedule": 30}


class Interrupted:
    """A code store after each of whose readings something happens."""

    def __init__(self, store: SqlStore, happens: Callable[[], object]) -> None:
        self._store: Any = store
        self._happens = happens
        self.readings = 0

    def code_state(self, owner: str, release: str, live_seconds: float) -> CodeState:
        self.readings += 1
        state: CodeState = self._store.code_state(owner, release, live_seconds)
        self._happens()
        return state

    def import_code(self, batch: CodeImport) -> Imported:
        done: Imported = self._store.import_code(batch)
        return done


class Shop:
    """An app whose releases are imported."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = world.store
        self.app = Celery("shop", set_as_current=False)

    def code(self, entries: dict[str, Any], release: str) -> CodeSchedule:
        return read_entries(self.app, entries, release)

    def brings(self, entries: dict[str, Any], release: str = "v1", store: Any = None) -> Imported:
        code = self.code(entries, release)
        plan = SchedulePlanner(code, RULES)
        return import_code(store or self.store, "shop", release, code.told(), plan, LIVE)

    def brings_while(
        self, happens: Callable[[], object], entries: dict[str, Any], times: int = 1
    ) -> tuple[Imported, int]:
        """Import while something happens after the first readings; return how often it was read."""
        left = [happens] * times
        store = Interrupted(self.store, lambda: left and left.pop()())
        return self.brings(entries, "v2", store), store.readings


@pytest.fixture
def shop(world: World) -> Shop:
    shop = Shop(world)
    shop.brings({"minute": MINUTE})
    return shop


def test_what_nobody_disturbs_is_read_and_written_once(shop: Shop) -> None:
    done, readings = shop.brings_while(lambda: None, {"minute": OTHER_CALL, "new": MINUTE})
    assert (done.changed, done.added, readings) == (["minute"], ["new"], 1)


def test_a_pause_by_hand_between_reading_and_writing_stays(shop: Shop) -> None:
    done, readings = shop.brings_while(lambda: shop.world.write(PauseJob("minute", "by hand")), {"minute": OTHER_CALL})
    assert (done.changed, done.is_stale, readings) == (["minute"], False, 2)
    row = shop.world.job("minute")
    assert (row["args"], row["enabled"], row["disabledreason"], row["version"]) == ("[1]", 0, "by hand", 3)


def test_a_job_that_is_paused_as_its_entry_leaves_stays_paused_for_that_reason(shop: Shop) -> None:
    done, readings = shop.brings_while(lambda: shop.world.write(PauseJob("minute", "by hand")), {})
    assert (done.left, readings) == ([], 2)
    assert shop.world.job("minute")["disabledreason"] == "by hand"


def test_a_job_that_is_adopted_between_reading_and_writing_is_not_disabled(shop: Shop) -> None:
    done, _ = shop.brings_while(lambda: shop.store.adopt("other", "shop"), {})
    row = shop.world.job("minute")
    assert (done.left, row["codeowner"], row["enabled"]) == ([], "other", 1)


def test_a_new_schedule_counts_from_a_run_that_began_between_reading_and_writing(shop: Shop) -> None:
    shop.world.later(60)
    done, readings = shop.brings_while(shop.world.claim, {"minute": HALF})
    assert (done.changed, readings) == (["minute"], 2)
    assert shop.world.instant("minute", "nextruntime") == NOON + timedelta(seconds=90)


def test_a_run_that_begins_meanwhile_does_not_disturb_a_change_of_the_call(shop: Shop) -> None:
    shop.world.later(60)
    done, readings = shop.brings_while(shop.world.claim, {"minute": OTHER_CALL})
    assert (done.changed, readings) == (["minute"], 1)


def test_what_was_added_meanwhile_is_changed_and_not_taken_for_somebody_elses(shop: Shop) -> None:
    done, readings = shop.brings_while(lambda: shop.brings({"minute": MINUTE, "new": MINUTE}), {"new": OTHER_CALL})
    assert (done.added, done.changed, done.kept, readings) == ([], ["new"], {}, 2)
    assert shop.world.job("new")["args"] == "[1]"


def test_the_entry_of_a_beat_that_came_between_reading_and_writing_did_not_leave_the_code(shop: Shop) -> None:
    def comes() -> None:
        node = Node("beat@new", "beat", "host", 1, "0.1.0", "v3", code_owner="shop")
        NodeView(shop.world.store).heartbeat(node)
        shop.brings({"minute": MINUTE}, "v3")

    done, readings = shop.brings_while(comes, {})
    assert (done.left, readings) == ([], 2) and done.spared == {"minute"}
    assert shop.world.job("minute")["disabledreason"] != LEFT_THE_CODE


def test_an_import_that_is_disturbed_again_and_again_ends_and_is_not_taken_for_done(shop: Shop) -> None:
    def disturbs() -> None:
        job = shop.world.job("minute")
        if job["enabled"]:
            shop.world.write(PauseJob("minute", "by hand"))
        else:
            shop.world.write(ResumeJob("minute", version=job["version"], next_run_time=NOON))

    done, readings = shop.brings_while(disturbs, {"minute": OTHER_CALL, "new": MINUTE}, times=100)
    assert (done.is_stale, done.changed, done.added, readings) == (True, [], ["new"], 5)
    assert shop.store.newest_release("shop", "v2", LIVE).imported == "v1"
    assert shop.brings({"minute": OTHER_CALL, "new": MINUTE}, "v2").changed == ["minute"]
    assert shop.store.newest_release("shop", "v2", LIVE).imported == "v2"
