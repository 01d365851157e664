"""Brings jobs into the table: plans a batch from the rows that are there, and writes it, all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from celery_sqlbeat.config import Settings
from celery_sqlbeat.definition import Rules
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.handle.drafting import Wish
from celery_sqlbeat.ids import Ids
from celery_sqlbeat.store import Store
from celery_sqlbeat.transfer.arrivals import Arrival, Shop
from celery_sqlbeat.transfer.code import bring_code
from celery_sqlbeat.transfer.plan import Step, checked, left_behind, step_of

BATCH = 500  # jobs of one transaction
_TRIES = 5  # of a batch; each loses only to somebody who changes the same jobs at this moment

Progress = Callable[[int], None]


def bring(
    store: Store,
    rules: Rules,
    jobs: Iterable[tuple[Arrival, Wish]],
    dry_run: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[Step]:
    """Bring jobs in, batch by batch; yields what became of each, or with `dry_run` what would."""
    ids = Ids()
    waiting = iter(jobs)
    while batch := list(islice(waiting, BATCH)):
        yield from _batch(store, rules, batch, ids, dry_run)
        progress(len(batch))


def bring_shop(
    store: Store,
    settings: Settings,
    rules: Rules,
    shop: Shop,
    dry_run: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[Step]:
    """Bring everything that a scheduler knows: the entries of the code first, then its own jobs."""
    yield from bring_code(store, settings, rules, shop, dry_run)
    good, bad = checked(shop.arrivals, rules)
    yield from bring(store, rules, good, dry_run, progress)
    yield from map(left_behind, sorted([*shop.left, *bad]))


def _batch(store: Store, rules: Rules, batch: Sequence[tuple[Arrival, Wish]], ids: Ids, dry_run: bool) -> list[Step]:
    late: set[str] = set()
    for _ in range(_TRIES):
        rows = store.for_admin().jobs([arrival.name for arrival, _ in batch])
        now = store.nodes().clock()
        steps = [step_of(arrival, wish, rows.get(arrival.name), now, rules, ids) for arrival, wish in batch]
        if dry_run:
            return steps
        late = store.for_transfer().place(
            [step.arrival for step in steps if step.arrival is not None],
            [step.change for step in steps if step.change is not None],
        )
        if not late:
            return steps
    raise StoreError(f"somebody else keeps changing {', '.join(sorted(late)[:5])}: try again")
