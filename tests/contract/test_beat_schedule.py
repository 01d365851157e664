"""A `beat_schedule` comes into the table: imported, changed, left, returned.

Releases that follow one another.
"""

import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedule

from celery_sqlbeat.beat_schedule.entries import read_entries
from celery_sqlbeat.beat_schedule.plan import SchedulePlanner, StockRun, custom_slots, first_runs
from celery_sqlbeat.beat_schedule.shelve_file import runs_in_code
from celery_sqlbeat.beat_schedule.sync import import_code
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import LEFT_THE_CODE, Beside, Claimable, DeleteJob, Node, PauseJob, ResumeJob
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import Ending
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.records import CodeTally, Imported, JobQuery, NewestRelease
from celery_sqlbeat.store.sql.store import SqlStore
from tests.support.claiming import claim_due
from tests.support.views import AdminView, CodeView, NodeView
from tests.support.world import NOON, World

LIVE = 100.0
RULES = Rules(Policies(), "UTC", 120.0, 3)
MINUTE = {"task": "app.minutely", "schedule": 60}
DAILY = {"task": "app.daily", "schedule": crontab(minute="0", hour="3"), "options": {"queue": "slow"}}

Schedule = Mapping[str, Mapping[str, Any]]


class Beat:
    """A beat of one release, as far as imports go."""

    def __init__(self, world: World, release: str = "v1", owner: str = "shop", store: SqlStore | None = None) -> None:
        self._world = world
        self._store = store or world.store
        self._app = Celery(owner, set_as_current=False)
        self.release = release
        self.owner = owner

    def is_alive(self, is_stopped: bool = False) -> None:
        """Say so, as beats do every now and then."""
        name = f"beat@{self.owner}-{self.release}"
        node = Node(name, "beat", "host", 1, "0.1.0", self.release, code_owner=self.owner, is_stopped=is_stopped)
        NodeView(self._store).heartbeat(node)

    def stops(self) -> None:
        self.is_alive(is_stopped=True)

    def imports(self, entries: Schedule, stock: Mapping[str, StockRun] | None = None, tells: bool = True) -> Imported:
        """`tells`: whether the release says which entries it has, as every one since 0.2 does."""
        code = read_entries(self._app, entries, self.release)
        plan = SchedulePlanner(code, RULES, first_runs(code, self._world.now, stock), stock)
        told = code.told() if tells else None
        return import_code(self._store, self.owner, self.release, told, plan, LIVE)

    def has_something_to_import(self) -> bool:
        newest = CodeView(self._store).newest_release(self.owner, self.release, LIVE)
        return newest.winner == self.release != newest.imported


@pytest.fixture
def beat(world: World) -> Beat:
    return Beat(world)


def names(world: World) -> set[str]:
    rows = world.sql("SELECT JobName FROM Jobs WHERE Namespace = ? AND Enabled = 1", world.namespace)
    return {row["jobname"] for row in rows}


def test_entries_become_jobs_that_are_due_as_in_stock_beat(world: World, beat: Beat) -> None:
    done = beat.imports({"minute": MINUTE, "daily": {**DAILY, "args": (1, "a"), "kwargs": {"k": None}}})
    assert done == Imported("v1", ["minute", "daily"], [], [], {}, tally=CodeTally(2, 0))
    row = world.job("daily")
    assert (row["taskname"], row["schedule"], row["timezone"]) == ("app.daily", "cron 0 3 * * *", "UTC")
    assert (row["args"], row["kwargs"], row["options"]) == ('[1, "a"]', '{"k": null}', '{"queue": "slow"}')
    assert (row["codeowner"], row["coderelease"], row["codekey"], row["enabled"]) == ("shop", "v1", None, 1)
    assert world.instant("minute", "nextruntime") == NOON + timedelta(minutes=1)
    assert world.instant("daily", "nextruntime") == datetime(2027, 3, 2, 3, tzinfo=timezone.utc)
    world.later(60)
    assert world.claim_one().task_name == "app.minutely"


def test_an_import_that_changes_nothing_writes_nothing(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE, "daily": DAILY})
    before, changes = world.job("minute"), world.beat.changes()
    world.later(30)
    assert beat.imports({"minute": MINUTE, "daily": DAILY}) == Imported("v1", [], [], [], {}, tally=CodeTally(2, 0))
    assert world.job("minute") == before
    assert world.beat.changes() == changes


def test_an_import_tells_the_other_beats(world: World, beat: Beat) -> None:
    before = world.beat.changes()
    beat.imports({"minute": MINUTE})
    beat.imports({"minute": {**MINUTE, "args": [1]}})
    beat.imports({})
    assert world.beat.changes() == before + 3


def test_a_change_of_the_call_leaves_the_next_run_alone(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.later(30)
    assert beat.imports({"minute": {**MINUTE, "task": "app.other", "args": [1]}}).changed == ["minute"]
    row = world.job("minute")
    assert (row["taskname"], row["args"], row["version"]) == ("app.other", "[1]", 2)
    assert world.instant("minute", "nextruntime") == NOON + timedelta(minutes=1)


def test_a_changed_schedule_gives_another_next_run(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE, "daily": DAILY})
    world.later(30)
    beat.imports({"minute": {**MINUTE, "schedule": 90}, "daily": {**DAILY, "schedule": crontab(minute="0", hour="15")}})
    assert world.instant("minute", "nextruntime") == NOON + timedelta(seconds=120)
    assert world.instant("daily", "nextruntime") == NOON + timedelta(hours=3)


def test_a_changed_interval_counts_from_the_last_run(world: World, beat: Beat) -> None:
    beat.imports({"minute": {**MINUTE, "schedule": 3600}})
    world.change("minute", LastRunTime=NOON - timedelta(seconds=1000))
    beat.imports({"minute": {**MINUTE, "schedule": 1800}})
    assert world.instant("minute", "nextruntime") == NOON + timedelta(seconds=800)
    beat.imports({"minute": {**MINUTE, "schedule": 600}})
    assert world.instant("minute", "nextruntime") == NOON


def test_a_new_schedule_wins_over_the_outcome_of_a_run(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.later(60)
    run = world.running()
    world.later(10)
    beat.imports({"minute": {**MINUTE, "schedule": 3600}})
    assert world.finish(run)
    assert world.states("minute") == ["success"]
    assert world.instant("minute", "nextruntime") == NOON + timedelta(seconds=3660)


def test_an_entry_that_left_the_code_runs_no_more_and_its_run_ends_as_ever(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE, "daily": DAILY})
    world.later(60)
    run = world.running()
    assert beat.imports({"daily": DAILY}).left == ["minute"]
    row = world.job("minute")
    assert (row["enabled"], row["disabledreason"]) == (0, LEFT_THE_CODE)
    assert world.finish(run)
    world.later(3600)
    assert world.claim().claims == []
    assert beat.imports({"daily": DAILY}).left == []


def test_an_entry_that_returns_runs_again_without_the_slots_that_it_missed(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE, "daily": DAILY})
    beat.imports({})
    world.later(3600)
    assert set(beat.imports({"minute": MINUTE, "daily": DAILY}).changed) == {"minute", "daily"}
    row = world.job("minute")
    assert (row["enabled"], row["disabledreason"]) == (1, None)
    assert world.instant("minute", "nextruntime") == world.now + timedelta(minutes=1)
    assert world.instant("daily", "nextruntime") == datetime(2027, 3, 2, 3, tzinfo=timezone.utc)
    assert world.runs("minute") == []


def test_a_pause_outlives_changes_leaving_and_returning(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.write(PauseJob("minute", "the shop is closed"))
    beat.imports({"minute": {**MINUTE, "args": [2]}})
    assert beat.imports({}).left == []
    assert beat.imports({"minute": MINUTE}).changed == ["minute"]
    row = world.job("minute")
    assert (row["enabled"], row["disabledreason"], row["args"]) == (0, "the shop is closed", None)


def test_what_somebody_disabled_by_hand_stays_disabled(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.change("minute", Enabled=0)
    beat.imports({"minute": {**MINUTE, "args": [2]}})
    assert world.job("minute")["enabled"] == 0


def test_a_paused_job_that_is_resumed_after_its_entry_left_is_disabled_by_the_next_import(
    world: World, beat: Beat
) -> None:
    beat.imports({"minute": MINUTE})
    assert world.write(PauseJob("minute", "closed"))
    version = world.record("minute").version
    beat.imports({})
    assert world.write(ResumeJob("minute", version=version, next_run_time=NOON))
    assert beat.imports({}).left == ["minute"]


def test_policies_and_a_lock_timeout_set_in_the_database_persist(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.change("minute", Policies='{"overlap": "allow"}', LockTimeoutMinutes=7)
    beat.imports({"minute": {**MINUTE, "schedule": 30}})
    row = world.job("minute")
    assert (row["policies"], row["locktimeoutminutes"]) == ('{"overlap": "allow"}', 7)


def test_a_time_zone_among_the_policies_of_a_row_counts_before_that_of_the_app(world: World, beat: Beat) -> None:
    beat.imports({"daily": DAILY})
    world.change("daily", Policies='{"timezone": "Asia/Tokyo"}')
    assert beat.imports({"daily": DAILY}).changed == ["daily"]
    assert world.instant("daily", "nextruntime") == datetime(2027, 3, 1, 18, tzinfo=timezone.utc)
    assert beat.imports({"daily": DAILY}).changed == []


def test_an_edit_by_hand_gives_way_to_the_code_and_its_quarantine_ends(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.change("minute", Args="nonsense", NextRunTime=NOON)
    assert world.claim().claims == []
    assert world.job("minute")["quarantine"]
    assert beat.imports({"minute": MINUTE}).changed == ["minute"]
    assert world.claim_one().job_name == "minute"


def test_policies_that_cannot_be_read_stop_no_import(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.change("minute", Policies="nonsense")
    assert beat.imports({"minute": {**MINUTE, "schedule": 30}, "daily": DAILY}).added == ["daily"]
    (row,) = world.beat.rows_needing_repair(10)
    assert world.planner.repairs([row])[1][0].job_name == "minute"


def test_a_name_of_the_database_or_of_another_app_is_left_alone_and_reported(world: World, beat: Beat) -> None:
    world.add("by-hand")
    Beat(world, owner="office").imports({"theirs": DAILY})
    before = (world.job("by-hand"), world.job("theirs"))
    done = beat.imports({"by-hand": MINUTE, "theirs": MINUTE, "ours": MINUTE})
    assert (done.added, done.kept) == (["ours"], {"by-hand": None, "theirs": "office"})
    assert beat.imports({}).left == ["ours"]
    assert (world.job("by-hand"), world.job("theirs")) == before


def test_other_namespaces_are_not_touched(world: World, beat: Beat) -> None:
    sibling = world.sibling()
    other = Beat(world, "v2", store=sibling)
    other.imports({"minute": DAILY})
    other.is_alive()
    assert beat.imports({"minute": MINUTE}).added == ["minute"]
    beat.imports({})
    jobs = AdminView(sibling).jobs(JobQuery())
    assert {name: job.enabled for name, job in jobs.items()} == {"minute": 1}


def test_the_newest_release_wins_while_it_lives(world: World) -> None:
    old, new = Beat(world, "v1"), Beat(world, "v2")
    old.is_alive()
    old.imports({"minute": MINUTE, "old": MINUTE})
    world.later(10)
    new.is_alive()
    new.imports({"minute": {**MINUTE, "args": [2]}, "new": MINUTE})
    assert names(world) == {"minute", "new", "old"}
    world.later(10)
    assert not old.has_something_to_import()
    done = old.imports({"minute": MINUTE, "old": MINUTE})
    assert (done.winner, done.added, done.changed, done.left) == ("v2", [], [], [])
    assert names(world) == {"minute", "new", "old"} and world.job("minute")["args"] == "[2]"


def test_a_release_that_tells_no_entries_defines_all_and_may_have_any(world: World) -> None:
    """As beats of 0.1.0 beside newer ones."""
    old, new = Beat(world, "v1"), Beat(world, "v2")
    old.is_alive()
    old.imports({"minute": MINUTE, "old": MINUTE}, tells=False)
    world.later(10)
    new.is_alive()
    assert new.imports({"minute": MINUTE}).spared == {"old"}
    assert names(world) == {"minute", "old"}
    old.stops()
    assert new.imports({"minute": MINUTE}).left == ["old"]
    newest = Beat(world, "v3")
    newest.is_alive()
    newest.imports({"minute": MINUTE, "newest": MINUTE}, tells=False)
    assert new.imports({"minute": {**MINUTE, "args": [1]}, "mine": MINUTE}).added == []


def test_an_entry_that_a_living_beat_of_the_app_has_is_not_disabled(world: World) -> None:
    """One beat for each group of entries."""
    fast, slow = Beat(world, "fast"), Beat(world, "slow")
    fast.is_alive()
    fast.imports({"fast": MINUTE, "shared": MINUTE})
    world.later(10)
    slow.is_alive()
    done = slow.imports({"slow": DAILY, "shared": MINUTE})
    assert done.left == [] and done.spared == {"fast"}
    assert done.beside == Beside(frozenset(), frozenset({"fast", "shared"}))
    fast.stops()
    assert slow.imports({"slow": DAILY, "shared": MINUTE}).left == ["fast"]
    assert names(world) == {"slow", "shared"}


def test_an_older_release_brings_what_only_it_has(world: World) -> None:
    """The beat of a group that comes back finds the newer one of another group alive."""
    fast, slow = Beat(world, "fast"), Beat(world, "slow")
    fast.imports({"fast": MINUTE, "shared": MINUTE})
    world.later(10)
    slow.is_alive()
    assert slow.imports({"slow": DAILY, "shared": DAILY}).left == ["fast"]
    fast.is_alive()
    done = fast.imports({"fast": MINUTE, "shared": MINUTE})
    assert (done.winner, done.changed) == ("slow", ["fast"])
    assert names(world) == {"fast", "slow", "shared"} and world.job("shared")["taskname"] == "app.daily"
    assert not fast.has_something_to_import()


def test_the_tally_tells_what_others_have_done_to_the_jobs_of_an_app(world: World, beat: Beat) -> None:
    def newest() -> NewestRelease:
        return CodeView(world.store).newest_release("shop", "v1", LIVE)

    done = beat.imports({"minute": MINUTE, "daily": DAILY})
    assert done.tally == newest().tally == CodeTally(2, 0)
    world.write(DeleteJob("daily"))
    assert newest().tally == CodeTally(1, 0)
    assert beat.imports({"minute": MINUTE, "daily": DAILY}).added == ["daily"]
    other = Beat(world, "v2")
    other.imports({"daily": DAILY})
    assert newest().tally == CodeTally(2, 1)


def test_a_beat_knows_what_lives_beside_it(world: World, beat: Beat) -> None:
    beat.is_alive()
    beat.imports({"minute": MINUTE})
    assert not CodeView(world.store).newest_release("shop", "v1", LIVE).has_others
    other = Beat(world, "v1", owner="office")
    other.is_alive()
    assert CodeView(world.store).newest_release("shop", "v1", LIVE).has_others
    worker_runtime, shop = CodeView(world.store).living(LIVE)
    assert (worker_runtime.owner, worker_runtime.first_seen_at, worker_runtime.entries) == ("office", None, None)
    assert (shop.owner, shop.release, shop.beat) == ("shop", "v1", "beat@shop-v1") and list(shop.entries or {}) == [
        "minute"
    ]
    world.later(LIVE + 1)
    assert CodeView(world.store).living(LIVE) == []


def test_a_beat_claims_the_jobs_of_its_app_and_those_of_none(world: World) -> None:
    for owner in ("shop", "office"):
        Beat(world, owner=owner).imports({f"{owner}-job": MINUTE})
    world.add("dbas", NextRunTime=NOON + timedelta(seconds=1))
    store, shop = world.beat, Claimable("shop")
    assert store.next_deadlines(Claimable("nobody's")).due_at == NOON + timedelta(seconds=1)
    world.change("dbas", NextRunTime=NOON + timedelta(hours=1))
    assert store.starts_after(NOON + timedelta(minutes=2), Claimable("nobody's")) == NOON + timedelta(hours=1)
    world.change("dbas", NextRunTime=NOON)
    world.add_slot(world.job("office-job")["id"])
    assert store.next_deadlines(shop).outbox_at is None and store.next_deadlines().outbox_at == NOON
    world.later(60)
    assert {claim.job_name for claim in claim_due(store, world.planner, 10, 15.0, shop).claims} == {"shop-job", "dbas"}
    assert store.next_deadlines(shop).due_at is None
    (claim,) = claim_due(store, world.planner, 10, 15.0, Claimable("office")).claims
    assert claim.job_name == "office-job"


def test_a_beat_leaves_to_another_living_beat_what_only_that_one_has(world: World, beat: Beat) -> None:
    beat.imports({"mine": MINUTE, "theirs": MINUTE})
    world.later(60)
    mine = Claimable("shop", (), ["theirs"])
    assert claim_due(world.beat, world.planner, 10, 15.0, Claimable("shop", (), (), ["no other"])).claims == []
    assert [claim.job_name for claim in claim_due(world.beat, world.planner, 10, 15.0, mine).claims] == ["mine"]
    assert world.beat.next_deadlines(mine).due_at is None and world.beat.next_deadlines().due_at == NOON + timedelta(
        minutes=1
    )


def test_rows_of_another_app_are_brought_in_order_by_its_own_beats(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.change("minute", NextRunTime=None)
    assert world.beat.rows_needing_repair(10, owner="office") == []
    assert [row.job_name for row in world.beat.rows_needing_repair(10, owner="shop")] == ["minute"]
    world.change("minute", DeleteRequested=1)
    assert [row.job_name for row in world.beat.rows_needing_repair(10, owner="office")] == ["minute"]


def test_the_jobs_of_some_tasks_are_found(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE, "again": MINUTE, "daily": DAILY})
    world.change("again", Enabled=0)
    code = CodeView(world.store)
    assert code.jobs_of(["app.minutely", "app.other"], 10) == {"minute": "app.minutely"}
    assert code.jobs_of(["app.minutely", "app.daily"], 1) == {"daily": "app.daily"}
    assert code.jobs_of([], 10) == {}


def test_the_jobs_of_an_app_that_was_renamed_are_adopted(world: World) -> None:
    old, new = Beat(world, owner="shop"), Beat(world, "v2", owner="store")
    old.imports({"minute": MINUTE, "gone": MINUTE})
    world.later(30)
    assert new.imports({"minute": MINUTE}).kept == {"minute": "shop"}
    assert CodeView(world.store).owners() == {"shop": 2}
    assert CodeView(world.store).adopt("store", "shop") == ["gone", "minute"]
    done = new.imports({"minute": MINUTE})
    assert (done.added, done.changed, done.left, done.kept) == ([], [], ["gone"], {})
    assert world.instant("minute", "nextruntime") == NOON + timedelta(minutes=1)
    assert CodeView(world.store).owners() == {"store": 1}


def test_an_older_release_that_lives_wins_again_when_the_newest_is_gone(world: World) -> None:
    old, new = Beat(world, "v1"), Beat(world, "v2")
    old.imports({"old": MINUTE})
    new.is_alive()
    new.imports({"new": MINUTE})
    new.stops()
    assert old.has_something_to_import()
    old.imports({"old": MINUTE})
    assert names(world) == {"old"} and not old.has_something_to_import()
    new.is_alive()
    assert new.has_something_to_import() and not old.has_something_to_import()
    new.imports({"new": MINUTE})
    old.is_alive()
    assert names(world) == {"new"}
    world.later(LIVE)
    old.is_alive()
    assert old.has_something_to_import()
    assert old.imports({"old": MINUTE}).left == ["new"]


def test_a_living_release_of_another_app_or_of_a_worker_counts_for_nothing(world: World, beat: Beat) -> None:
    Beat(world, "v2").imports({})
    Beat(world, "v2", owner="office").is_alive()
    node = Node("worker@host", "worker", "host", 1, "0.1.0", "v2", code_owner="shop")
    NodeView(world.store).heartbeat(node)
    assert beat.imports({"minute": MINUTE}).added == ["minute"]


def test_a_release_is_newer_even_if_the_clock_stepped_back(world: World) -> None:
    old, new = Beat(world, "v1"), Beat(world, "v2")
    old.is_alive()
    old.imports({"old": MINUTE})
    world.later(-50)
    assert new.imports({"new": MINUTE}).winner == "v2"
    new.is_alive()
    assert old.imports({"old": MINUTE}).winner == "v2"
    assert not new.has_something_to_import()


def test_two_beats_of_one_release_import_at_once(world: World) -> None:
    entries = {f"job-{n}": {**MINUTE, "args": [n]} for n in range(200)}
    answers: list[Imported] = []
    admission = threading.Barrier(4)

    def run() -> None:
        beat = Beat(world)
        admission.wait()
        answers.append(beat.imports(entries))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(done.added) for done in answers) == [0, 0, 0, 200]
    assert all(not done.changed and not done.left and not done.kept for done in answers)


def test_two_releases_that_come_at_once_agree_on_the_newest(world: World) -> None:
    beats = [Beat(world, f"v{n}") for n in range(4)]
    for beat in beats:
        beat.is_alive()
    admission = threading.Barrier(4)

    def run(beat: Beat) -> None:
        admission.wait()
        beat.imports({"minute": {**MINUTE, "args": [beat.release]}, beat.release: MINUTE})

    threads = [threading.Thread(target=run, args=[beat]) for beat in beats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = {CodeView(world.store).newest_release("shop", beat.release, LIVE) for beat in beats}
    assert len(winners) == 1
    ((winner, imported, *_),) = winners
    assert winner == imported and names(world) == {"minute", *(beat.release for beat in beats)}
    assert world.job("minute")["args"] == f'["{winner}"]'


def test_an_entry_with_a_problem_stays_as_it_was(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE, "daily": DAILY})
    assert beat.imports({"minute": {**MINUTE, "schedule": "nonsense"}, "daily": DAILY}).left == []
    assert names(world) == {"minute", "daily"}


def test_a_job_about_to_be_deleted_is_left_to_its_deletion(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.later(60)
    run = world.running()
    world.write(DeleteJob("minute"))
    assert beat.imports({"minute": {**MINUTE, "args": [1]}}) == Imported("v1", [], [], [], {}, tally=CodeTally(1, 0))
    world.finish(run)
    world.beat.delete_requested([run.job_id])
    assert beat.imports({"minute": MINUTE}).added == ["minute"]


def test_a_single_instant_that_is_moved_runs_again(world: World, beat: Beat) -> None:
    beat.imports({"once": {"task": "t", "schedule": "once 2027-03-01T12:01:00Z"}})
    world.later(60)
    world.finish(world.running())
    assert world.job("once")["disabledreason"] == "finished"
    assert beat.imports({"once": {"task": "t", "schedule": "once 2027-03-01T12:01:00Z"}}).changed == []
    beat.imports({"once": {"task": "t", "schedule": "once 2027-03-01T13:00:00Z"}})
    row = world.job("once")
    assert (row["enabled"], row["disabledreason"]) == (1, None)
    assert world.instant("once", "nextruntime") == NOON + timedelta(hours=1)


def test_what_is_not_text_is_claimed_only_by_a_beat_that_has_it(world: World, beat: Beat) -> None:
    entries = {"lazy": {**MINUTE, "args": (BeatLazyFunc(time.time),)}}
    beat.imports(entries)
    row = world.job("lazy")
    assert (row["schedule"], row["args"]) == ("every 1m", None) and row["codekey"]
    world.later(60)
    assert world.claim().claims == []
    (claim,) = claim_due(world.beat, world.planner, 10, 15.0, Claimable(code_keys=[row["codekey"]])).claims
    assert claim.code_key == row["codekey"]


class Fortnights(schedule):
    """A schedule of somebody's own."""

    def is_due(self, last_run_at: datetime) -> Any:
        return False, 1209600.0


def test_a_custom_schedule_says_itself_when_it_is_due_first(world: World, beat: Beat) -> None:
    entries = {"custom": {"task": "t", "schedule": Fortnights(1)}}
    beat.imports(entries)
    row = world.job("custom")
    assert row["schedule"] == "code" and row["codekey"]
    assert world.instant("custom", "nextruntime") == NOON + timedelta(days=14)
    assert beat.imports(entries).changed == []


class Quarters(schedule):
    """Every 90 minutes, but asks again after an hour at most."""

    def is_due(self, last_run_at: datetime) -> Any:
        passed = (self.now() - last_run_at).total_seconds()
        return (True, 5400.0) if passed >= 5400.0 else (False, min(3600.0, 5400.0 - passed))


def test_a_custom_schedule_is_asked_at_each_claim_by_a_beat_that_has_it(world: World, beat: Beat) -> None:
    entries = {"custom": {"task": "t", "schedule": Quarters(1)}}
    code = read_entries(Celery("shop", set_as_current=False), entries, "v1")
    plan = SchedulePlanner(code, RULES, first_runs(code, world.now))
    import_code(world.store, "shop", "v1", None, plan, LIVE)
    assert plan.since == {"custom": world.now}
    assert world.claim().jobs_read == 0
    slots = custom_slots(code, plan.since)
    planner = Planner(RULES, world.ids, slots)
    began = world.now
    world.change("custom", NextRunTime=began, LastRunTime=began - timedelta(seconds=3600))

    def claims() -> list[str]:
        return [
            claim.job_name
            for claim in claim_due(world.beat, planner, 10, 15.0, Claimable(code_keys=list(slots))).claims
        ]

    assert claims() == []  # asked, and not due yet
    early = world.instant("custom", "nextruntime")
    assert early == began + timedelta(seconds=1800)
    assert world.job("custom")["quarantine"] is None and world.runs("custom") == []
    world.change("custom", NextRunTime=began, LastRunTime=began - timedelta(seconds=6000))
    assert claims() == ["custom"]
    assert world.instant("custom", "plannedat") == began + timedelta(seconds=5400)


def test_a_custom_schedule_without_a_next_run_is_left_to_a_beat_that_has_it(world: World, beat: Beat) -> None:
    beat.imports({"custom": {"task": "t", "schedule": Fortnights(1)}})
    world.change("custom", NextRunTime=None)
    rows = world.beat.rows_needing_repair(10)
    mends, quarantines = world.planner.repairs(rows)
    assert quarantines == [] and world.beat.repair_rows(mends).done
    assert world.instant("custom", "nextruntime") == NOON


def test_what_stock_beat_knew_decides_the_first_run(world: World, beat: Beat) -> None:
    hour = timedelta(hours=1)
    stock = {
        "minute": StockRun(NOON - timedelta(seconds=20), True),
        "late": StockRun(NOON - hour, True),
        "daily": StockRun(NOON - 48 * hour, True),
        "never": StockRun(NOON - timedelta(seconds=10), False),
    }
    beat.imports({"minute": MINUTE, "late": MINUTE, "daily": DAILY, "never": MINUTE, "new": MINUTE}, stock)
    assert world.instant("minute", "nextruntime") == NOON + timedelta(seconds=40)
    assert world.instant("minute", "lastruntime") == NOON - timedelta(seconds=20)
    assert world.instant("never", "nextruntime") == NOON + timedelta(seconds=50)
    assert world.instant("never", "lastruntime") is None
    assert world.instant("new", "nextruntime") == NOON + timedelta(seconds=60)
    assert {claim.job_name for claim in world.claim().claims} == {"late", "daily"}  # once, as in stock beat
    assert [run["state"] for run in world.runs("daily")] == ["skipped", "claimed"]


def test_the_last_run_that_an_entry_says_itself_decides_its_first_slot_alone(world: World, beat: Beat) -> None:
    hour = timedelta(hours=1)
    naive = (NOON - timedelta(seconds=20)).replace(tzinfo=None)  # in UTC, as stock beat takes it
    entries = {
        "late": {**MINUTE, "last_run_at": NOON - 2 * hour},
        "soon": {**MINUTE, "last_run_at": naive},
        "daily": {**DAILY, "last_run_at": NOON - 48 * hour},
        "beyond": {**MINUTE, "last_run_at": datetime.max.replace(tzinfo=timezone.utc)},
    }
    given = runs_in_code(entries)
    beat.imports(entries, given)
    assert world.instant("soon", "nextruntime") == NOON + timedelta(seconds=40)
    assert world.instant("soon", "lastruntime") == NOON - timedelta(seconds=20)
    assert world.instant("beyond", "nextruntime") == NOON + timedelta(seconds=60)
    claims = world.claim().claims
    assert {claim.job_name for claim in claims} == {"late", "daily"}
    for claim in claims:
        world.beat.mark_dispatched([claim])
    before = {name: world.instant(name, "nextruntime") for name in entries}
    world.later(1)
    beat.release = "v2"  # the next deployment says the same
    beat.imports(entries, given)
    assert {name: world.instant(name, "nextruntime") for name in entries} == before
    assert world.claim().claims == []


def test_what_stock_beat_has_run_meanwhile_does_not_run_again(world: World, beat: Beat) -> None:
    names = ("stock", "ours", "held", "early")
    beat.imports(dict.fromkeys(names, MINUTE))
    world.later(60)
    assert len(world.claim().claims) == 4
    world.change("held", Enabled=1)
    for name in names[:2] + names[3:]:
        world.change(name, LockedBy=None, NextRunTime=NOON + timedelta(seconds=120))
    world.later(600)
    at = world.now - timedelta(seconds=20)
    stock = {
        "stock": StockRun(at, True),
        "ours": StockRun(at, True, is_stocks=False),
        "held": StockRun(at, True),
        "early": StockRun(NOON + timedelta(seconds=60), True),
    }
    before = {name: world.instant(name, "nextruntime") for name in names}
    beat.imports(dict.fromkeys(names, MINUTE), stock)
    after = {name: world.instant(name, "nextruntime") for name in names}
    assert after == {**before, "stock": at + timedelta(seconds=60)}


def test_a_waiting_retry_of_an_entry_that_left_runs_when_it_returns(world: World, beat: Beat) -> None:
    beat.imports({"minute": MINUTE})
    world.later(60)
    world.finish(world.running(), Ending("retry", "failed", 5.0, 1))
    beat.imports({})
    world.later(10)
    assert world.claim().claims == []
    beat.imports({"minute": MINUTE})
    assert world.claim_one().slot.attempt == 2


def test_text_of_any_kind_survives_and_is_found_again(world: World, beat: Beat) -> None:
    strange = "Zürich \"quoted\" 'single' \\ back {brace} %s ? :name 日本 🕰\n" + "long " * 100
    entries = {strange: {**MINUTE, "kwargs": {"k": "\0 ü \ud800", strange: strange}}}
    assert len(beat.imports(entries).added) == 1
    assert beat.imports(entries) == Imported("v1", [], [], [], {}, tally=CodeTally(1, 0))


def many(count: int, **fields: Any) -> dict[str, dict[str, Any]]:
    kinds = [60, crontab(minute="*/5"), crontab(minute="0", hour="3", day_of_week="mon-fri"), timedelta(hours=1)]
    return {
        f"job-{n:05}": {
            "task": f"app.tasks.number_{n % 50}",
            "schedule": kinds[n % len(kinds)],
            "args": (n, "some text", [1, 2, 3]),
            "kwargs": {"customer": n, "full": True},
            "options": {"queue": "periodic", "expires": 300},
            **fields,
        }
        for n in range(count)
    }


@pytest.mark.slow
def test_five_thousand_entries_are_imported_and_compared(world: World, beat: Beat) -> None:
    assert len(beat.imports(many(5000)).added) == 5000
    assert beat.imports(many(5000)) == Imported("v1", [], [], [], {}, tally=CodeTally(5000, 0))
    assert len(beat.imports(many(5000, task="app.other")).changed) == 5000
    assert len(beat.imports(many(2500, task="app.other")).left) == 2500


def test_the_statements_of_an_import_are_few_whatever_its_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    opened = world.store.database.dialect.connect()
    opened.close()
    session = type(opened)
    fetch = session.fetch

    def counted(self: Any, name: str, *args: Any, **scalars: Any) -> Any:
        asked.append(name)
        return fetch(self, name, *args, **scalars)

    monkeypatch.setattr(session, "fetch", counted)
    Beat(world).imports(many(10))
    few, asked[:] = len(asked), []
    Beat(world).imports(many(1000))
    assert len(asked) <= few and len(asked) < 10


def test_a_planner_of_other_ids_makes_other_jobs() -> None:
    code = read_entries(Celery("shop", set_as_current=False), {"minute": MINUTE})
    one, other = (SchedulePlanner(code, RULES, ids=Ids())(NOON, []) for _ in range(2))
    assert one.additions[0].job_id != other.additions[0].job_id
