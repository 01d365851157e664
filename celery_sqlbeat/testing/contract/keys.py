"""Idempotency keys: while a key lasts, it stands for one run."""

from collections.abc import Callable

from celery_sqlbeat.model.one_offs import OneOff, Submitted, kept_key
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.purges import OldKeys
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.one_offs import DAY, held_by_submitter, key, one_off, one_offs, submit, submitted
from celery_sqlbeat.testing.contract.races import at_once, patiently
from celery_sqlbeat.testing.world import HOUR, World

CROWD = 8


class KeyContract(Contract):
    """Rules of the keys of `submit`."""

    def test_a_key_stands_for_its_first_run(self, world: World) -> None:
        at = world.now + HOUR
        first = submitted(world, key=key(), due_at=at)
        (answer,) = submit(world, held_by_submitter(world, task_name="app.other", key=key(digest="d2")))
        assert (answer.run_id, answer.is_new, answer.due_at, answer.fence) == (first, False, at, 0)
        assert (answer.task_name, answer.digest) == ("app.once", "d1")
        assert one_offs(world) == [first]

    def test_a_key_stands_for_its_run_after_the_end_of_it(self, world: World) -> None:
        first = submitted(world, key=key())
        assert world.finish(world.running())
        (answer,) = submit(world, one_off(world, key=key()))
        assert (answer.run_id, answer.is_new) == (first, False)

    def test_a_key_that_has_ended_is_taken_over(self, world: World) -> None:
        submitted(world, key=key(seconds=1.0))
        world.later(1.5)
        second = submitted(world, key=key(digest="d2"))
        (answer,) = submit(world, one_off(world, key=key()))
        assert (answer.run_id, answer.is_new, answer.digest) == (second, False, "d2")

    def test_two_of_one_batch_with_one_key_are_one_run(self, world: World) -> None:
        first, second = (one_off(world, key=key()) for _ in "12")
        answers = submit(world, first, second)
        assert {answer.run_id for answer in answers} == set(one_offs(world))
        assert sorted(answer.is_new for answer in answers) == [False, True]

    def test_in_a_batch_only_what_has_a_new_key_is_added(self, world: World) -> None:
        first = submitted(world, key=key())
        others = [one_off(world), one_off(world, key=key()), one_off(world, key=key("new"))]
        assert [answer.is_new for answer in submit(world, *others)] == [True, False, True]
        assert set(one_offs(world)) == {first, others[0].run_id, others[2].run_id}

    def test_idempotency_keys_are_told_apart_by_case_spaces_and_namespace(self, world: World) -> None:
        for text in ("a", "A", "a ", "ä", "k" * 255, "k" * 254 + "K", "\N{PARTY POPPER}" * 255):
            submitted(world, key=key(kept_key(text)))
        assert submit(world, one_off(world, key=key()), store=world.sibling())[0].is_new

    def test_ended_keys_are_cleaned_up(self, world: World) -> None:
        for at in range(3):
            submitted(world, key=key(f"short {at}", seconds=1.0))
        kept = submitted(world, key=key("long", seconds=DAY))
        assert world.store.purge(OldKeys()).rows == 0
        world.later(1.5)
        assert world.store.purge(OldKeys(limit=2)).rows == 2
        assert world.store.purge(OldKeys()).rows == 1
        assert submit(world, one_off(world, key=key("long")))[0].run_id == kept

    def test_of_a_crowd_with_one_key_one_has_made_the_run(self, world: World) -> None:
        crowd = [one_off(world, key=key()) for _ in range(CROWD)]

        def ask(wanted: OneOff) -> Callable[[Store], Submitted]:
            return lambda store: patiently(lambda: submit(world, wanted, store=store)[0])

        answers = at_once(world, *map(ask, crowd))
        assert [answer.is_new for answer in answers].count(True) == 1
        assert {answer.run_id for answer in answers} == set(one_offs(world))
