"""Decide what becomes of a job that an import writes: added, defined anew, or left by its code.

Each changes rows of a view, and returns whether the job is as it was read.
"""

from celery_sqlbeat.model import (
    FINISHED,
    LEFT_THE_CODE,
    CodeAddition,
    CodeChange,
    CodeDefinition,
    CodeImport,
    CodeRow,
)
from celery_sqlbeat.store.keyvalue.job_rows import put_new
from celery_sqlbeat.store.keyvalue.rows import Key, Row
from celery_sqlbeat.store.keyvalue.tables import JOB, NAME, STORE, kept
from celery_sqlbeat.store.keyvalue.units import View

Item = CodeAddition | CodeChange | CodeRow
"""What is written: a job that is added, one that changes, or one whose entry left the code."""


def keys_of(item: Item) -> list[Key]:
    """Return the rows that a write reads in any case."""
    if isinstance(item, CodeAddition):
        return [STORE, (NAME, item.definition.job_name)]
    return [(JOB, item.row.job_id if isinstance(item, CodeChange) else item.job_id)]


def name_of(item: Item) -> str:
    """Return the name of the job that is written."""
    if isinstance(item, CodeAddition):
        return item.definition.job_name
    return item.row.job_name if isinstance(item, CodeChange) else item.job_name


def add(view: View, item: CodeAddition, batch: CodeImport) -> bool:
    """Add a job; not where there is one of this name."""
    row = {
        **_definition(item.definition),
        "code_owner": batch.owner,
        "code_release": batch.release,
        "enabled": 1,
        "next_run_time": kept(item.next_run_time),
        "last_run_time": kept(item.last_run_time),
    }
    return put_new(view, item.definition.job_name, item.job_id, row)


def change(view: View, item: CodeChange, release: str) -> bool:
    """Define a job anew; what left the code comes back, what an operator paused stays paused."""
    row = view.row(JOB, item.row.job_id)
    if row is None or row["version"] != item.row.version or row.get("delete_requested"):
        return False
    if item.reschedule:
        if row["fence"] != item.row.fence:
            return False  # its last run is another one now
        row["next_run_time"] = kept(item.next_run_time)
    reason = row.get("disabled_reason")
    if reason == LEFT_THE_CODE or (reason == FINISHED and item.reschedule):
        row.update(enabled=1, disabled_reason=None)
    row.update(_definition(item.definition), code_release=release, quarantine=None)
    return _stamped(view, row)


def leave(view: View, job: CodeRow) -> bool:
    """Disable a job whose entry left the code; a run that holds it goes on to its end."""
    row = view.row(JOB, job.job_id)
    if row is None or row["version"] != job.version or not row.get("enabled"):
        return False
    row.update(enabled=0, disabled_reason=LEFT_THE_CODE)
    return _stamped(view, row)


def _stamped(view: View, row: Row) -> bool:
    row.update(version=row["version"] + 1, updated_at=view.now)
    view.is_news = True
    return True


def _definition(definition: CodeDefinition) -> Row:
    told = definition._asdict()
    del told["job_name"]
    return told
