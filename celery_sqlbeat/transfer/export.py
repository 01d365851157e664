"""Takes jobs out of the table, as JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator

from celery_sqlbeat.definition import Rules
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.store import Store
from celery_sqlbeat.transfer.arrivals import Left
from celery_sqlbeat.transfer.lines import line_of

_PAGE = 500  # rows that are read at a time


def exported(store: Store, rules: Rules, with_state: bool = True) -> Iterator[str | Left | None]:
    """A line for each job of the table; None for one that a `beat_schedule` brings by itself.

    In the place of a job that cannot work as it is written, why.
    """
    admin, after = store.for_admin(), ""
    while page := admin.list_jobs(_PAGE, after):
        after = page[-1].job_name
        for row in page:
            if row.code_owner is not None or row.delete_requested:
                yield None
                continue
            try:
                yield line_of(row, rules, with_state)
            except FieldError as error:
                yield Left(row.job_name, str(error))
