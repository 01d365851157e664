"""Releases: how the `beat_schedule` of an app is imported, and which release defines an entry."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from celery_sqlbeat.model import (
    LEFT_THE_CODE,
    CodeAddition,
    CodeChange,
    CodeChanges,
    CodeImport,
    CodeState,
    DeleteIdleJob,
    DeleteJob,
    Node,
    PauseJob,
    ResumeJob,
)
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import CodeTally, Imported
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.claims import code_job
from celery_sqlbeat.testing.world import HOUR, MINUTE, OVERLAP, World

LIVE = 100.0  # seconds
Entries = Mapping[str, Mapping[str, Any]]
PLAIN: Entries = {"minute": {}}
OTHER: Entries = {"minute": {"task_name": "app.other"}}


class AppRelease:
    """A release of an app with a beat, as far as imports go."""

    def __init__(self, world: World, name: str = "v1", owner: str = "shop", store: Store | None = None) -> None:
        self.world, self.name, self.owner = world, name, owner
        self.store = store or world.store

    def is_alive(self, is_stopped: bool = False) -> None:
        """Say that its beat is alive, or has stopped."""
        beat = f"beat@{self.owner}-{self.name}"
        node = Node(beat, "beat", "host", 1, "0.1.0", self.name, code_owner=self.owner, is_stopped=is_stopped)
        self.store.heartbeat(node)

    def state(self) -> CodeState:
        """Read what an import is planned from."""
        return self.store.code_state(self.owner, self.name, LIVE)

    def plan(self, state: CodeState, entries: Entries, due: datetime | None = None) -> CodeChanges:
        """Plan what makes the jobs say what the entries say; `due` moves those that change."""
        rows = {row.job_name: row for row in state.rows if not row.delete_requested}
        jobs = {name: code_job(name, **fields) for name, fields in entries.items()}
        ids = self.world.ids
        first = due or state.now + MINUTE
        going = {row.job_name for row in state.rows if row.delete_requested}
        additions = [
            CodeAddition(ids.random_id(), job, first, None)
            for name, job in jobs.items()
            if name not in rows and name not in going
        ]
        changes = [
            CodeChange(rows[name], job, due is not None, due)
            for name, job in jobs.items()
            if name in rows and (not rows[name].says(job) or rows[name].disabled_reason == LEFT_THE_CODE)
        ]
        left = [row for name, row in rows.items() if name not in jobs and row.enabled and not state.beside.has(name)]
        return CodeChanges(additions, changes, left)

    def brings(self, entries: Entries, due: datetime | None = None, state: CodeState | None = None) -> Imported:
        """Import entries, planned from what is read now or was read before."""
        state = state or self.state()
        told = dict.fromkeys(entries, "digest")
        changes = None if state.beside.newer is None else self.plan(state, entries, due)
        return self.store.import_code(CodeImport(self.owner, self.name, told, LIVE, state.beside, changes))

    def brings_again(self, entries: Entries) -> list[str]:
        """Import entries, again where something has changed meanwhile; return what was added."""
        added: list[str] = []
        is_stale = True
        while is_stale:
            done = self.brings(entries)
            added, is_stale = added + done.added, done.is_stale
        return added

    def has_something_to_import(self) -> bool:
        """Return whether this release is the winner, and another one was imported last."""
        newest = self.store.newest_release(self.owner, self.name, LIVE)
        return newest.winner == self.name != newest.imported


class ReleaseContract(Contract):
    """Rules of `code_state`, `import_code`, `newest_release`, `living` and `adopt`."""

    def test_entries_become_jobs_of_their_app(self, world: World) -> None:
        done = AppRelease(world).brings({"minute": {"args": "[1]", "options": '{"queue": "q"}'}, "other": {}})
        assert done == Imported("v1", ["minute", "other"], [], [], {}, tally=CodeTally(2, 0))
        job = world.job("minute")
        assert (job.task_name, job.schedule, job.time_zone) == ("app.task", "every 60s", "UTC")
        assert (job.args, job.kwargs, job.options, job.policies) == ("[1]", None, '{"queue": "q"}', None)
        assert (job.code_owner, job.code_key, job.enabled, job.version) == ("shop", None, 1, 1)
        assert job.next_run_time == world.near(world.noon + MINUTE)

    def test_what_an_import_is_planned_from_is_the_jobs_of_that_app(self, world: World) -> None:
        AppRelease(world).brings(PLAIN)
        AppRelease(world, owner="office").brings({"theirs": {}})
        world.add("by-hand")
        (row,) = AppRelease(world).state().rows
        job = world.job("minute")
        assert (row.job_id, row.job_name, row.version, row.fence) == (job.job_id, "minute", 1, job.fence)
        assert row.says(code_job("minute"))

    def test_an_import_that_changes_nothing_is_not_noticed(self, world: World) -> None:
        release = AppRelease(world)
        release.brings(PLAIN)
        before, changes = world.job("minute"), world.changes()
        assert release.brings(PLAIN) == Imported("v1", [], [], [], {}, tally=CodeTally(1, 0))
        assert world.job("minute")[:-1] == before[:-1]
        assert world.changes() == changes

    def test_an_import_that_changes_something_is_noticed(self, world: World) -> None:
        release, seen = AppRelease(world), [world.changes()]
        for entries in (PLAIN, OTHER, {}):
            release.brings(entries)
            seen.append(world.changes())
        assert seen == sorted(set(seen))

    def test_an_import_may_be_announced_although_it_changes_nothing(self, world: World) -> None:
        release = AppRelease(world)
        release.brings(PLAIN)
        before, state = world.changes(), release.state()
        changes = CodeChanges([], [], [])
        world.store.import_code(CodeImport("shop", "v1", {}, LIVE, state.beside, changes, announce=True))
        assert world.changes() > before

    def test_a_change_leaves_the_next_run_alone_unless_it_moves_it(self, world: World) -> None:
        release = AppRelease(world)
        release.brings(PLAIN)
        first = world.job("minute").next_run_time
        assert release.brings(OTHER).changed == ["minute"]
        job = world.job("minute")
        assert (job.task_name, job.version, job.next_run_time) == ("app.other", 2, first)
        release.brings(PLAIN, world.noon + HOUR)
        assert world.job("minute").next_run_time == world.noon + HOUR

    def test_a_new_schedule_wins_over_the_outcome_of_a_run(self, world: World) -> None:
        release = AppRelease(world)
        release.brings(PLAIN, world.now)
        run = world.running()
        release.brings({"minute": {"schedule": "every 3600s"}}, world.noon + HOUR)
        assert world.finish(run)
        assert world.job("minute").next_run_time == world.noon + HOUR

    def test_an_entry_that_left_the_code_runs_no_more_and_its_run_ends_as_ever(self, world: World) -> None:
        release = AppRelease(world)
        release.brings({"minute": {"schedule": "every 1s"}}, world.now)
        run = world.running()
        assert release.brings({}).left == ["minute"]
        job = world.job("minute")
        assert (job.enabled, job.disabled_reason) == (0, LEFT_THE_CODE)
        assert world.finish(run)
        world.later(1.5)
        assert world.claim().claims == []
        assert release.brings({}).left == []

    def test_an_entry_that_returns_is_enabled_again(self, world: World) -> None:
        release = AppRelease(world)
        release.brings(PLAIN)
        release.brings({})
        assert release.brings(PLAIN, world.noon + HOUR).changed == ["minute"]
        job = world.job("minute")
        assert (job.enabled, job.disabled_reason, job.next_run_time) == (1, None, world.noon + HOUR)

    def test_a_pause_outlives_changes_leaving_and_returning(self, world: World) -> None:
        release = AppRelease(world)
        release.brings(PLAIN)
        world.write(PauseJob("minute", "the shop is closed"))
        release.brings(OTHER)
        assert release.brings({}).left == []
        release.brings(PLAIN)
        job = world.job("minute")
        assert (job.enabled, job.disabled_reason, job.task_name) == (0, "the shop is closed", "app.task")

    def test_policies_and_a_lock_timeout_set_by_an_administrator_persist(self, world: World) -> None:
        release = AppRelease(world)
        release.brings(PLAIN)
        world.change("minute", policies=OVERLAP, lock_timeout_minutes=7)
        release.brings(OTHER)
        assert (world.job("minute").policies, world.job("minute").lock_timeout_minutes) == (OVERLAP, 7)

    def test_an_import_ends_the_quarantine_of_what_it_changes(self, world: World) -> None:
        release = AppRelease(world)
        release.brings({"minute": {"args": "nonsense"}}, world.now)
        world.claim()
        assert world.job("minute").quarantine is not None
        release.brings(PLAIN)
        assert world.job("minute").quarantine is None
        assert world.claim_one().job_name == "minute"

    def test_a_name_of_the_database_or_of_another_app_is_left_alone_and_reported(self, world: World) -> None:
        world.add("by-hand")
        AppRelease(world, owner="office").brings({"theirs": {}})
        before = world.job("by-hand")[:-1], world.job("theirs")[:-1]
        done = AppRelease(world).brings({"by-hand": {}, "theirs": {}, "ours": {}})
        assert (done.added, done.kept) == (["ours"], {"by-hand": None, "theirs": "office"})
        assert AppRelease(world).brings({}).left == ["ours"]
        assert (world.job("by-hand")[:-1], world.job("theirs")[:-1]) == before

    def test_a_job_about_to_be_deleted_is_left_to_its_deletion(self, world: World) -> None:
        release = AppRelease(world)
        release.brings(PLAIN, world.now)
        run = world.running()
        world.write(DeleteJob("minute"))
        assert release.brings(OTHER) == Imported("v1", [], [], [], {}, tally=CodeTally(1, 0))
        world.finish(run)
        assert world.write(DeleteIdleJob("minute", run.job_id))
        assert release.brings(PLAIN).added == ["minute"]

    def test_a_lazy_entry_keeps_its_key(self, world: World) -> None:
        AppRelease(world).brings({"lazy": {"code_key": "abc"}})
        assert world.job("lazy").code_key == "abc"

    def test_jobs_of_an_app_are_adopted_by_another(self, world: World) -> None:
        AppRelease(world).brings({"a": {}, "b": {}, "c": {}})
        assert world.store.adopt("store", "shop", ["b"]) == ["b"]
        assert world.store.adopt("store", "shop") == ["a", "c"]
        assert {name: world.job(name).code_owner for name in "abc"} == dict.fromkeys("abc", "store")
        assert world.store.adopt("store", "shop") == []
        assert AppRelease(world, "v2", owner="store").brings({"a": {}}).left in (["b", "c"], ["c", "b"])

    # What happens between the reading and the writing of an import

    def test_a_pause_between_reading_and_writing_stays(self, world: World) -> None:
        done = imported_while(world, lambda _: world.write(PauseJob("minute", "by hand")), OTHER)
        assert (done.changed, done.is_stale) == ([], True)
        job = world.job("minute")
        assert (job.enabled, job.disabled_reason, job.task_name) == (0, "by hand", "app.task")
        assert AppRelease(world).brings(OTHER).changed == ["minute"]
        assert world.job("minute").disabled_reason == "by hand"

    def test_a_job_that_is_paused_as_its_entry_leaves_stays_paused_for_that_reason(self, world: World) -> None:
        done = imported_while(world, lambda _: world.write(PauseJob("minute", "by hand")), {})
        assert (done.left, done.is_stale) == ([], True)
        assert world.job("minute").disabled_reason == "by hand"

    def test_a_job_that_is_adopted_between_reading_and_writing_is_not_disabled(self, world: World) -> None:
        done = imported_while(world, lambda _: world.store.adopt("other", "shop"), {})
        job = world.job("minute")
        assert (done.left, job.code_owner, job.enabled) == ([], "other", 1)

    def test_a_job_that_was_added_meanwhile_is_not_taken_for_somebody_elses(self, world: World) -> None:
        done = imported_while(world, lambda other: other.brings({"minute": {}, "new": {}}), {"minute": {}, "new": {}})
        assert (done.added, done.kept, done.is_stale) == ([], {}, True)

    def test_a_run_that_begins_meanwhile_does_not_disturb_a_change_of_the_call(self, world: World) -> None:
        def claims(release: AppRelease) -> None:
            world.change_time("minute", world.now)
            release.brings(PLAIN)

        claims(release_with_minute(world))
        release = AppRelease(world)
        state = release.state()
        world.claim_one()
        done = release.brings(OTHER, state=state)
        assert (done.changed, done.is_stale) == (["minute"], False)

    def test_nothing_is_imported_where_another_beat_has_come_meanwhile(self, world: World) -> None:
        def comes(_: AppRelease) -> None:
            newer = AppRelease(world, "v3")
            newer.is_alive()
            newer.brings(PLAIN)

        done = imported_while(world, comes, {})
        assert (done.left, done.is_stale) == ([], True)
        assert world.job("minute").enabled == 1

    def test_a_resumed_job_whose_entry_left_is_disabled_by_the_next_import(self, world: World) -> None:
        release = release_with_minute(world)
        world.write(PauseJob("minute", "closed"))
        version = world.job("minute").version
        release.brings({})
        assert world.write(ResumeJob("minute", version=version, next_run_time=world.noon))
        assert release.brings({}).left == ["minute"]


def release_with_minute(world: World) -> AppRelease:
    """Return the release of a shop that has brought its only entry."""
    release = AppRelease(world)
    release.brings(PLAIN)
    return release


def imported_while(world: World, happens: Callable[[AppRelease], object], entries: Entries) -> Imported:
    """Import while something happens between the reading and the writing."""
    release = release_with_minute(world)
    state = release.state()
    happens(release)
    return release.brings(entries, state=state)
