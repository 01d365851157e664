"""Imports of a `beat_schedule` over rows that are compared and set: one app's come one by one."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import (
    LEFT_THE_CODE,
    AddJob,
    Beside,
    CodeAddition,
    CodeChange,
    CodeChanges,
    CodeDefinition,
    CodeImport,
    CodeRow,
    DeleteJob,
    Node,
    PauseJob,
)
from celery_sqlbeat.store.keyvalue.tables import JOB
from celery_sqlbeat.store.purges import OldNodes
from celery_sqlbeat.store.records import CodeTally, Imported, NewestRelease
from tests.support.memory_place import NOON, Bench, draft

LIVE = 100.0
MINUTE = timedelta(minutes=1)


class Shop(Bench):
    """An app whose releases are imported."""

    def alive(self, release: str, owner: str = "shop", **fields: Any) -> None:
        name = f"beat@{owner}-{release}"
        self.nodes.heartbeat(Node(name, "beat", "host", 1, "0.1.0", release, code_owner=owner, **fields))

    def state(self, owner: str = "shop", release: str = "v1") -> dict[str, CodeRow]:
        return {row.job_name: row for row in self.releases.code_state(owner, release, LIVE).rows}

    def brings(
        self,
        *new: str,
        changes: tuple[CodeChange, ...] = (),
        gone: tuple[CodeRow, ...] = (),
        release: str = "v1",
        owner: str = "shop",
        **fields: Any,
    ) -> Imported:
        plan = CodeChanges([addition(name) for name in new], list(changes), list(gone))
        beside = self.releases.code_state(owner, release, LIVE).beside
        batch = CodeImport(owner, release, {"an entry": release}, LIVE, beside, plan)
        return self.releases.import_code(batch._replace(**fields))


def definition(name: str, **fields: Any) -> CodeDefinition:
    return CodeDefinition(name, "app.task", "every 60s", "UTC", None, None, None, None)._replace(**fields)


def addition(name: str) -> CodeAddition:
    return CodeAddition(f"id of {name}", definition(name), NOON + MINUTE, None)


def changed(row: CodeRow, reschedule: bool = False, **fields: Any) -> CodeChange:
    return CodeChange(row, definition(row.job_name, **fields), reschedule, NOON + 2 * MINUTE)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_entries_become_jobs_of_their_app(shop: Shop) -> None:
    done = shop.brings("a", "b")
    assert (done.winner, done.added, done.is_stale, done.tally) == ("v1", ["a", "b"], False, CodeTally(2, 0))
    row = shop.job("a")
    assert (row["code_owner"], row["code_release"], row["enabled"], row["version"]) == ("shop", "v1", 1, 1)
    assert shop.state()["a"].says(definition("a")) and shop.state()["a"].next_run_time == NOON + MINUTE
    assert shop.releases.newest_release("shop", "v1", LIVE) == NewestRelease("v1", "v1", CodeTally(2, 0))
    assert shop.jobs.counts().owners == {"shop": 2}


def test_an_import_that_changes_nothing_is_news_to_nobody_unless_it_says_so(shop: Shop) -> None:
    shop.brings("a")
    before = shop.changes()
    shop.brings()
    assert shop.changes() == before
    shop.brings(announce=True)
    assert shop.changes() == before + 1
    shop.brings("b")
    assert shop.changes() > before + 1


def test_a_name_that_belongs_to_somebody_else_stays_as_it_is(shop: Shop) -> None:
    shop.add("theirs")
    shop.brings("other", owner="other")
    done = shop.brings("theirs", "other", "ours")
    assert (done.added, done.kept, done.is_stale) == (["ours"], {"theirs": None, "other": "other"}, False)
    assert shop.job("theirs").get("code_owner") is None


def test_a_job_that_was_deleted_comes_back_with_its_fence(shop: Shop) -> None:
    shop.brings("a")
    shop.put(JOB, "id of a", fence=7)
    shop.writer.write_jobs([DeleteJob("a")])
    shop.brings("a")
    assert shop.job("a")["fence"] == 7


def test_a_job_is_changed_at_the_version_that_was_read(shop: Shop) -> None:
    shop.brings("a", "b")
    rows = shop.state()
    shop.writer.write_jobs([PauseJob("b", "by hand")])
    done = shop.brings(changes=(changed(rows["a"], args="[1]"), changed(rows["b"], args="[1]")), release="v2")
    assert (done.changed, done.is_stale) == (["a"], True)
    assert (shop.job("a")["args"], shop.job("a")["version"], shop.job("b").get("args")) == ("[1]", 2, None)
    assert shop.job("a")["code_release"] == "v2"
    assert shop.releases.newest_release("shop", "v2", LIVE).imported == "v1", "something was missed"


def test_a_new_next_run_needs_the_fence_that_was_read(shop: Shop) -> None:
    shop.brings("a", "b")
    rows = shop.state()
    for name in "ab":
        shop.put(JOB, f"id of {name}", fence=1)
    done = shop.brings(changes=(changed(rows["a"], reschedule=True), changed(rows["b"], args="[1]")))
    assert (done.changed, done.is_stale) == (["b"], True)
    again = shop.brings(changes=(changed(shop.state()["a"], reschedule=True),))
    assert again.changed == ["a"] and shop.state()["a"].next_run_time == NOON + 2 * MINUTE


def test_an_entry_that_left_the_code_is_disabled_and_comes_back(shop: Shop) -> None:
    shop.brings("a", "b")
    rows = shop.state()
    done = shop.brings(gone=(rows["a"],))
    assert (done.left, done.tally) == (["a"], CodeTally(2, 1))
    assert (shop.job("a")["enabled"], shop.job("a")["disabled_reason"]) == (0, LEFT_THE_CODE)
    assert shop.brings(gone=(rows["a"],)).is_stale
    shop.brings(changes=(changed(shop.state()["a"]),))
    assert (shop.job("a")["enabled"], shop.job("a").get("disabled_reason")) == (1, None)


def test_a_pause_outlives_a_change_and_an_end_does_not_outlive_another_schedule(shop: Shop) -> None:
    shop.brings("a", "b")
    shop.writer.write_jobs([PauseJob("a", "closed"), PauseJob("b", "finished")])
    rows = shop.state()
    shop.brings(changes=(changed(rows["a"], reschedule=True), changed(rows["b"], reschedule=True)))
    assert (shop.job("a")["enabled"], shop.job("b")["enabled"]) == (0, 1)


def test_the_newest_release_with_a_live_beat_wins(shop: Shop) -> None:
    shop.brings("a", release="v1")
    shop.alive("v1")
    shop.brings(release="v2")
    assert shop.releases.newest_release("shop", "v1", LIVE).winner == "v1", "no beat of v2 is alive"
    shop.alive("v2")
    newest = shop.releases.newest_release("shop", "v1", LIVE)
    assert (newest.winner, newest.imported, newest.has_others) == ("v2", "v2", True)
    assert shop.releases.newest_release("shop", "v3", LIVE).winner == "v3", "nobody has seen it yet"
    shop.alive("v2", is_stopped=True)
    assert shop.releases.newest_release("shop", "v1", LIVE).winner == "v1"


def test_releases_that_are_seen_at_one_instant_are_told_apart(shop: Shop) -> None:
    for release in ("v1", "v3", "v2"):
        shop.brings(release=release)
        shop.alive(release)
    winners = {shop.releases.newest_release("shop", release, LIVE).winner for release in ("v1", "v2", "v3")}
    assert winners == {"v2"}


def test_what_the_living_have_in_their_code_is_told(shop: Shop) -> None:
    shop.alive("v1")
    (starting,) = shop.releases.living(LIVE)
    assert (starting.first_seen_at, starting.entries) == (None, None)
    shop.brings(entries={"a": "x"})
    shop.alive("v2", owner="other")
    shop.brings(release="v2", owner="other", entries=None)
    one, other = shop.releases.living(LIVE)
    assert (one.owner, one.release, one.beat, one.entries) == ("other", "v2", "beat@other-v2", None)
    assert (other.owner, other.release, other.first_seen_at, other.entries) == ("shop", "v1", NOON, {"a": "x"})
    shop.brings(entries={"a": "y"})
    assert shop.releases.living(LIVE)[1].entries == {"a": "y"}


def test_nothing_is_written_where_another_beat_has_come_since_the_plan(shop: Shop) -> None:
    shop.brings("a")
    shop.alive("v2")
    shop.brings(release="v2", entries={"a": "x"})
    done = shop.brings("b", beside=Beside())
    assert (done.is_stale, done.added) == (True, [])
    assert done.beside == Beside(frozenset({"a"}), frozenset({"a"}))
    assert shop.names() == ["a"]


def test_an_import_notices_one_that_comes_between_its_read_and_its_write(shop: Shop) -> None:
    shop.brings("a")
    row = shop.state()["a"]
    other = shop.releases
    theirs = CodeImport("shop", "v2", {"a": "x"}, LIVE, Beside(), CodeChanges([], [changed(row, args="[2]")], []))
    shop.between(lambda: other.import_code(theirs))
    done = shop.brings(changes=(changed(row, args="[1]"),))
    assert (done.changed, done.is_stale, shop.job("a")["args"]) == ([], True, "[2]")


def test_two_beats_of_a_new_release_register_it_once(shop: Shop) -> None:
    other = shop.releases
    batch = CodeImport("shop", "v1", {"a": "x"}, LIVE, Beside(), CodeChanges([addition("a")], [], []))
    shop.between(lambda: other.import_code(batch))
    done = shop.releases.import_code(batch)
    assert (done.added, done.is_stale) == ([], True), "the app's own row is there already: it is planned again"
    assert shop.releases.newest_release("shop", "v1", LIVE).imported == "v1"


def test_a_release_that_defines_nothing_only_registers(shop: Shop) -> None:
    shop.brings("a", release="v2")
    done = shop.releases.import_code(CodeImport("shop", "v1", None, LIVE, Beside(), None))
    assert (done.added, done.is_stale) == ([], False)
    assert shop.releases.newest_release("shop", "v1", LIVE).imported == "v2"


def test_jobs_are_given_to_another_app(shop: Shop) -> None:
    shop.brings("a", "b", "c")
    before = shop.changes()
    assert shop.releases.adopt("new", "shop", ["b", "x"]) == ["b"]
    assert shop.changes() > before
    assert shop.releases.adopt("new", "shop") == ["a", "c"]
    assert shop.releases.adopt("new", "shop") == []
    assert {row.version for row in shop.state("new").values()} == {2}
    assert shop.jobs.counts().owners == {"new": 3}


def test_a_job_that_is_adopted_meanwhile_is_not_disabled(shop: Shop) -> None:
    shop.brings("a")
    row = shop.state()["a"]
    other = shop.releases
    shop.between(lambda: other.adopt("new", "shop"))
    assert shop.brings(gone=(row,)).is_stale
    assert shop.job("a")["enabled"] == 1


def test_a_job_of_a_dba_is_added_beside_those_of_an_app(shop: Shop) -> None:
    shop.brings("a")
    assert shop.writer.write_jobs([AddJob(draft("a"))]).conflicts == {"a"}


def test_a_run_that_holds_a_job_is_told_to_who_plans(shop: Shop) -> None:
    shop.brings("a", "b")
    shop.hold("a")
    shop.put(JOB, "id of a", claimed_at=NOON)
    shop.put(JOB, "id of b", claimed_at=NOON)
    assert (shop.state()["a"].claimed_at, shop.state()["b"].claimed_at) == (NOON, None)


def test_the_entries_of_a_release_without_a_beat_are_forgotten_and_its_age_is_not(shop: Shop) -> None:
    for release in ("v1", "v2"):
        shop.brings(release=release)
        shop.alive(release)
    shop.later(1000)
    shop.alive("v1")
    shop.history.purge(OldNodes(500.0))
    shop.alive("v2")
    told = {release.release: (release.entries, release.first_seen_at) for release in shop.releases.living(LIVE)}
    assert told["v1"] == ({"an entry": "v1"}, NOON)
    assert told["v2"][0] is None and told["v2"][1] is not None and told["v2"][1] < NOON + MINUTE
    shop.brings(release="v2")
    assert shop.releases.living(LIVE)[1].entries == {"an entry": "v2"}
