"""Releases that live beside each other: the newest one with a living beat defines an entry."""

from celery_sqlbeat.model import Beside, DeleteJob, Node
from celery_sqlbeat.store.records import CodeTally
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.releases import LIVE, OTHER, PLAIN, AppRelease
from celery_sqlbeat.testing.world import World


class LivingReleaseContract(Contract):
    """Rules of `newest_release` and `living`."""

    def test_the_newest_release_wins_while_it_lives(self, world: World) -> None:
        old, new = AppRelease(world, "v1"), AppRelease(world, "v2")
        old.is_alive()
        old.brings(PLAIN)
        world.later(0.1)
        new.is_alive()
        assert new.has_something_to_import() and new.brings(OTHER).winner == "v2"
        assert not new.has_something_to_import() and not old.has_something_to_import()
        assert old.store.newest_release("shop", "v1", LIVE)[:2] == ("v2", "v2")

    def test_a_release_that_nobody_has_seen_is_the_newest(self, world: World) -> None:
        old = AppRelease(world, "v1")
        old.is_alive()
        old.brings(PLAIN)
        newest = world.store.newest_release("shop", "v2", LIVE)
        assert (newest.winner, newest.imported, newest.has_others) == ("v2", "v1", True)

    def test_an_older_release_that_lives_wins_again_when_the_newest_has_stopped(self, world: World) -> None:
        old, new = AppRelease(world, "v1"), AppRelease(world, "v2")
        old.brings({"old": {}})
        new.is_alive()
        new.brings({"new": {}})
        new.is_alive(is_stopped=True)
        assert old.has_something_to_import()
        assert old.brings({"old": {}}).left == ["new"]
        assert not old.has_something_to_import()
        new.is_alive()
        assert new.has_something_to_import() and not old.has_something_to_import()

    def test_an_older_release_wins_again_when_the_newest_fell_silent(self, world: World) -> None:
        old, new = AppRelease(world, "v1"), AppRelease(world, "v2")
        old.brings(PLAIN)
        world.later(1)
        new.is_alive()
        new.brings(OTHER)
        old.is_alive()
        assert not old.has_something_to_import()
        world.later(LIVE + 1)
        old.is_alive()
        assert old.has_something_to_import()

    def test_a_release_is_newer_even_if_the_clock_stepped_back(self, world: World) -> None:
        old, new = AppRelease(world, "v1"), AppRelease(world, "v2")
        old.is_alive()
        old.brings({"old": {}})
        world.later(-50)
        assert new.brings({"new": {}}).winner == "v2"
        new.is_alive()
        assert old.store.newest_release("shop", "v1", LIVE).winner == "v2"
        assert not new.has_something_to_import()

    def test_a_living_release_of_another_app_or_of_a_worker_counts_for_nothing(self, world: World) -> None:
        AppRelease(world, "v2").brings({})
        AppRelease(world, "v2", owner="office").is_alive()
        world.store.heartbeat(Node("worker@host", "worker", "host", 1, "0.1.0", "v2", code_owner="shop"))
        assert AppRelease(world).brings(PLAIN).winner == "v1"

    def test_an_import_is_planned_beside_the_entries_of_the_other_living_beats(self, world: World) -> None:
        fast, slow = AppRelease(world, "fast"), AppRelease(world, "slow")
        fast.is_alive()
        fast.brings({"fast": {}, "shared": {}})
        world.later(0.1)
        slow.is_alive()
        assert slow.state().beside == Beside(frozenset(), frozenset({"fast", "shared"}))
        assert slow.brings({"slow": {}, "shared": {}}).left == []
        assert fast.state().beside == Beside(frozenset({"slow", "shared"}), frozenset({"slow", "shared"}))
        fast.is_alive(is_stopped=True)
        assert slow.state().beside == Beside()
        assert slow.brings({"slow": {}, "shared": {}}).left == ["fast"]

    def test_the_tally_tells_what_others_have_done_to_the_jobs_of_an_app(self, world: World) -> None:
        release = AppRelease(world)

        def tally() -> CodeTally:
            return world.store.newest_release("shop", "v1", LIVE).tally

        assert release.brings({"a": {}, "b": {}}).tally == tally() == CodeTally(2, 0)
        world.write(DeleteJob("b"))
        assert tally() == CodeTally(1, 0)
        assert release.brings({"b": {}}).tally == tally() == CodeTally(2, 1)

    def test_a_beat_knows_what_lives_beside_it(self, world: World) -> None:
        release = AppRelease(world)
        release.is_alive()
        release.brings(PLAIN)
        assert not world.store.newest_release("shop", "v1", LIVE).has_others
        AppRelease(world, owner="office").is_alive()
        assert world.store.newest_release("shop", "v1", LIVE).has_others
        living = {found.owner: found for found in world.store.living(LIVE)}
        assert (living["office"].first_seen_at, living["office"].entries) == (None, None)
        shop = living["shop"]
        assert (shop.release, shop.beat, shop.entries) == ("v1", "beat@shop-v1", {"minute": "digest"})
        assert shop.first_seen_at == world.near(world.noon)

    def test_a_beat_that_fell_silent_lives_no_more(self, world: World) -> None:
        release = AppRelease(world)
        release.is_alive()
        release.brings(PLAIN)
        world.later(LIVE + 1)
        assert world.store.living(LIVE) == []

    def test_releases_of_another_namespace_are_not_seen(self, world: World) -> None:
        sibling = world.sibling()
        other = AppRelease(world, "v2", store=sibling)
        other.is_alive()
        other.brings(OTHER)
        assert world.store.living(LIVE) == []
        assert AppRelease(world).brings(PLAIN).winner == "v1"
        assert sibling.newest_release("shop", "v2", LIVE).imported == "v2"
