"""Views of a store with short words for single steps, as the tests of the promises use them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from celery_sqlbeat.model import (
    CancelRun,
    Claim,
    Claimable,
    Claimed,
    CodeImport,
    CodeRow,
    CodeState,
    DeleteIdleJob,
    DueBatch,
    EndedSlot,
    HeldLease,
    JobCounts,
    JobRecord,
    JobWrite,
    JobWriteResult,
    LivingRelease,
    NewRun,
    Node,
    Plan,
    Quarantine,
    QuarantineJob,
    RefusedStart,
    RepairJob,
    ReplaceableRun,
    RunningJob,
    RunRecord,
    SeenNode,
    StartedRun,
    StartRequest,
    Unbegun,
)
from celery_sqlbeat.model.lifecycle import CANCELLED, DISPATCHED, REPLACED_REASON, SKIPPED, Ending, released
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.purges import DeadLetters, OldKeys, OldNodes, OldRuns, Purged
from celery_sqlbeat.store.records import (
    ALL_JOBS,
    EVERY_SHARE,
    FIRST_ID,
    Extended,
    Guard,
    Imported,
    JobQuery,
    KeptRun,
    NewestRelease,
    NextDeadlines,
    Recorded,
    Release,
    RunNote,
    RunQuery,
)
from celery_sqlbeat.store.sql.store import SqlStore


def sql_store(store: Store) -> SqlStore:
    """Return a store that is known to be in a SQL database."""
    assert isinstance(store, SqlStore)
    return store


def of_process(store: Store) -> Store:
    """Return the store as another process has it: what it remembers is its own."""
    return SqlStore(store.database, store.namespace) if isinstance(store, SqlStore) else store


class BeatView:
    """What one beat asks."""

    def __init__(self, store: Store, beat: str) -> None:
        self.store = of_process(store)
        self.name = beat

    def due(
        self, batch_size: int, claimable: Claimable = ALL_JOBS, share: str = EVERY_SHARE, besides: Collection[str] = ()
    ) -> DueBatch:
        return self.store.due(batch_size, claimable, share, besides)

    def claim(self, due: DueBatch, plan: Plan, dispatch_seconds: float) -> Claimed:
        return self.store.claim(due, plan, self.name, dispatch_seconds)

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Recorded:
        return self.store.mark_published(published)

    def mark_dispatched(self, claims: Iterable[Claim], reason: str | None = None) -> Recorded:
        return self.end(claims, Ending(DISPATCHED, reason))

    def release_claims(self, claims: Iterable[Claim], reason: str, seconds: float = 0.0) -> Recorded:
        return self.end(claims, released(reason, seconds))

    def fail(self, refused: Iterable[tuple[Claim, Ending]]) -> Recorded:
        return self.store.finish([Release.of(claim, ending) for claim, ending in refused], Guard.UNSTARTED)

    def skip(self, claims: Iterable[Claim], reason: str) -> Recorded:
        return self.end(claims, Ending(SKIPPED, reason))

    def cancel(self, claims: Iterable[Claim], reason: str) -> Recorded:
        return self.end(claims, Ending(CANCELLED, reason))

    def end(self, claims: Iterable[Claim], ending: Ending) -> Recorded:
        return self.store.finish([Release.of(claim, ending) for claim in claims], Guard.UNSTARTED)

    def ended(self, batch_size: int) -> list[HeldLease]:
        return self.store.expired(batch_size).leases

    def reclaim(self, endings: Iterable[tuple[HeldLease, Ending]]) -> set[str]:
        return self.store.finish([Release.of(lease, ending) for lease, ending in endings], Guard.EXPIRED).done

    def replaceable(self, batch_size: int, owner: str = "") -> list[ReplaceableRun]:
        return self.store.expired(batch_size, owner).replaceable

    def replace(self, runs: Iterable[ReplaceableRun]) -> set[str]:
        ending = Ending(CANCELLED, REPLACED_REASON)
        return self.store.finish([Release.of(run, ending) for run in runs], Guard.REPLACEABLE).done

    def postpone_replacing(self, runs: Iterable[tuple[ReplaceableRun, datetime | None]]) -> None:
        self.store.postpone([KeptRun(run, until) for run, until in runs])

    def postpone_start_deadline(self, waiting: Iterable[tuple[HeldLease, float]]) -> set[str]:
        return self.store.postpone(list(waiting), self.name)

    def note_check_ins(self, check_ins: Iterable[tuple[Claim, str]]) -> Recorded:
        return self.store.note_runs([RunNote(claim.run_id, claim.claim_id, text) for claim, text in check_ins])

    def check_ins(self, run_ids: Iterable[str]) -> dict[str, str]:
        runs = self.store.runs(RunQuery(run_ids=set(run_ids)))
        return {run.run_id: run.check_in for run in runs if run.check_in is not None}

    def release_orphan_locks(self, lock_seconds: float) -> list[str]:
        return self.store.release_orphan_locks(lock_seconds)

    def next_deadlines(self, claimable: Claimable = ALL_JOBS) -> NextDeadlines:
        return self.store.next_deadlines(claimable)

    def starts_after(self, instant: datetime, claimable: Claimable = ALL_JOBS) -> datetime | None:
        return self.store.next_deadlines(claimable, after=instant).starts_at()

    def changes(self) -> int:
        return self.store.pulse().changes

    def rows_needing_repair(self, batch_size: int, after_id: str = FIRST_ID, owner: str = "") -> list[JobRecord]:
        query = JobQuery(needing_repair_of=owner, after_id=after_id, page_size=batch_size)
        return list(self.store.jobs(query).values())

    def repair_rows(
        self, repairs: Iterable[RepairJob], quarantines: Iterable[Quarantine | QuarantineJob] = ()
    ) -> JobWriteResult:
        """Write repairs and quarantines; the result is by job id."""
        writes: list[JobWrite] = [replace(repair, job_name=repair.job_id) for repair in repairs]
        writes += [QuarantineJob(row.job_id, row.job_id, row.fence, row.version, row.reason) for row in quarantines]
        return self.store.write_jobs(writes)

    def delete_requested(self, job_ids: Iterable[str]) -> JobWriteResult:
        """Delete jobs whose deletion was asked for; the result is by job id."""
        return self.store.write_jobs([DeleteIdleJob(job_id, job_id) for job_id in job_ids])


class WorkerView:
    """What one worker asks."""

    def __init__(self, store: Store, worker: str) -> None:
        self.store = of_process(store)
        self.name = worker

    def start(self, requests: Iterable[StartRequest]) -> dict[str, StartedRun]:
        answers = self.store.start(list(requests), self.name)
        return {run_id: run for run_id, run in answers.items() if isinstance(run, StartedRun)}

    def refuse(self, requests: Iterable[StartRequest]) -> dict[str, RefusedStart]:
        answers = self.store.start(list(requests), self.name)
        return {run_id: run for run_id, run in answers.items() if isinstance(run, RefusedStart)}

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        return self.store.extend(held)

    def postpone(self, unbegun: Iterable[Unbegun]) -> set[str]:
        return self.store.postpone(list(unbegun))

    def finish(self, outcomes: Iterable[tuple[StartedRun, Ending]]) -> set[str]:
        """Return the run ids whose lease was lost."""
        releases = [Release.of(run, ending) for run, ending in outcomes]
        return {end.run_id for end in releases} - self.store.finish(releases).done


class AdminView:
    """What an administrator asks."""

    def __init__(self, store: Store) -> None:
        self.store = of_process(store)

    def jobs(self, query: JobQuery) -> dict[str, JobRecord]:
        return self.store.jobs(query)

    def counts(self, since_seconds: float = 0.0) -> JobCounts:
        return self.store.counts(since_seconds)

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        return self.store.running(least_seconds, most)

    def write_jobs(self, writes: Sequence[JobWrite], together: bool = False) -> JobWriteResult:
        return self.store.write_jobs(writes, together)

    def enqueue(self, runs: Sequence[NewRun]) -> set[str]:
        return self.store.enqueue(runs)

    def cancel(self, job_name: str, reason: str = "cancelled by hand") -> bool:
        return bool(self.store.write_jobs([CancelRun(job_name, reason)]).done)

    def runs(self, query: RunQuery) -> list[RunRecord]:
        return self.store.runs(query)

    def purge(self, what: DeadLetters | OldRuns | OldNodes | OldKeys) -> Purged:
        return self.store.purge(what)


class CodeView:
    """What a beat asks about its `beat_schedule`."""

    def __init__(self, store: Store) -> None:
        self.store = of_process(store)

    def newest_release(self, owner: str, release: str, live_seconds: float) -> NewestRelease:
        return self.store.newest_release(owner, release, live_seconds)

    def code_rows(self, owner: str) -> Sequence[CodeRow]:
        return self.store.code_state(owner, "", 0.0).rows

    def living(self, live_seconds: float) -> list[LivingRelease]:
        return self.store.living(live_seconds)

    def jobs_of(self, tasks: Iterable[str], page_size: int) -> dict[str, str]:
        jobs = self.store.jobs(JobQuery(of_tasks=list(tasks), page_size=page_size))
        return {name: str(job.task_name) for name, job in jobs.items()}

    def owners(self) -> dict[str, int]:
        return dict(self.store.counts().owners)

    def code_state(self, owner: str, release: str, live_seconds: float) -> CodeState:
        return self.store.code_state(owner, release, live_seconds)

    def import_code(self, batch: CodeImport) -> Imported:
        return self.store.import_code(batch)

    def adopt(self, owner: str, former_owner: str, names: Collection[str] | None = None) -> list[str]:
        return self.store.adopt(owner, former_owner, names)


class ResultView:
    """What ends the results of earlier attempts."""

    def __init__(self, store: Store) -> None:
        self.store = of_process(store)

    def unended(self, page_size: int, since_seconds: float) -> list[EndedSlot]:
        return self.store.unended_results(page_size, since_seconds)

    def ended(self, run_ids: Iterable[str]) -> None:
        self.store.note_runs([RunNote(run_id, results_ended=True) for run_id in run_ids])


class NodeView:
    """The register of nodes."""

    def __init__(self, store: Store) -> None:
        self.store = of_process(store)

    def heartbeat(self, node: Node) -> datetime:
        return self.store.heartbeat(node)

    def seen(self, memory_seconds: float) -> list[SeenNode]:
        return self.store.nodes(memory_seconds)

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        return self.store.tasks(node_ids)

    def clock(self) -> datetime:
        return self.store.pulse().now
