"""Write the upkeep of beats: repairs, quarantines and deletions, around rows that are refused."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from celery_sqlbeat.model import DeleteIdleJob, JobUpkeep, JobWriteResult, QuarantineJob, RepairJob
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.faults import in_halves, refusal
from celery_sqlbeat.store.sql.runs import delete_free
from celery_sqlbeat.store.sql.session import Row


def write_upkeep(database: Database, namespace: str, writes: Sequence[JobUpkeep]) -> JobWriteResult:
    """Write each of these, unless its row has changed meanwhile or somebody keeps it locked."""
    repairs = [(w.job_id, w.fence, w.version, w.next_run_time, w.retry_at) for w in writes if isinstance(w, RepairJob)]
    quarantines = [(w.job_id, w.fence, w.version, w.reason) for w in writes if isinstance(w, QuarantineJob)]
    deletions = [(w.job_id,) for w in writes if isinstance(w, DeleteIdleJob)]
    done: set[str] = set()
    refused: dict[str, str] = {}

    def write(rows: Sequence[Row], work: Callable[[Sequence[Row]], set[str]]) -> None:
        in_halves(
            sorted(rows),
            lambda part: done.update(work(part)),
            lambda row, why: refused.update({row[0]: refusal(str(why))}),
        )

    def fetch(block: str, rows: Sequence[Row]) -> set[str]:
        return {row[0] for row in database.fetch(block, rows)}

    def delete(rows: Sequence[Any]) -> set[str]:
        return database.write(lambda session: delete_free(session, namespace, rows))

    write(repairs, partial(fetch, "repair_rows"))
    write(quarantines, partial(fetch, "quarantine_jobs"))
    write(deletions, delete)
    names = {write.job_id: write.job_name for write in writes}
    missed = {name for job_id, name in names.items() if job_id not in done and job_id not in refused}
    return JobWriteResult({names[i] for i in done}, missed, {names[i]: why for i, why in refused.items()})
