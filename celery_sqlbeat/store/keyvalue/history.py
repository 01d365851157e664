"""Read the history of runs, and delete what is no longer needed."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from celery_sqlbeat.model import RunRecord
from celery_sqlbeat.model.lifecycle import DLQ, RETRY
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store.keyvalue.identity import forget_namespace
from celery_sqlbeat.store.keyvalue.reading import read_rows
from celery_sqlbeat.store.keyvalue.rows import Key, Place, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import (
    DEAD,
    DELETED,
    ENDED_STATES,
    JOB,
    KEY,
    KEYS,
    LOCK,
    NAME,
    NODE,
    NODES,
    ONE_OFFS,
    RELEASE,
    RELEASES,
    RUN,
    RUNS,
    STORE,
    TAKEN,
    TASKS,
    after,
    instant,
    micros,
    record_of,
    release_id,
    runs_index,
    slots_index,
)
from celery_sqlbeat.store.keyvalue.units import View, carry_out, parts, sure
from celery_sqlbeat.store.purges import DeadLetters, OldKeys, OldNodes, OldRuns, Purged, WholeNamespace
from celery_sqlbeat.store.records import RunQuery

_PURGED_STATES = tuple(state for state in ENDED_STATES if state != DLQ)
_BATCH = 500  # rows of a purge
_REST = 1.0  # after a batch, in times of what it took: a server of one thread has others to serve

Rows = dict[str, Row]


class History:
    """What a store is asked about runs that were, and what it forgets."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def runs(self, query: RunQuery) -> list[RunRecord]:
        """Return attempts in the order of the query; those of given ids in any order."""
        if query.run_ids is not None:
            return self._records(read_rows(self._place, RUN, sorted(set(query.run_ids))))
        if query.job_id is not None:
            return self._of_job(query.job_id, query)
        last_id = None if query.after is None else query.after.run_id
        if query.only_dead:
            return self._page(Scan(DEAD, limit=query.page_size, after=last_id))
        index = ONE_OFFS if query.one_offs else RUNS
        page = self._page(Scan(index, limit=query.page_size, after=last_id, is_reversed=True))
        if query.state is None:
            return page
        return [run for run in page if run.state == query.state or run is page[-1]]

    def purge(self, what: DeadLetters | OldRuns | OldNodes | OldKeys | WholeNamespace) -> Purged:
        """Delete rows for good."""
        if isinstance(what, DeadLetters):
            return Purged(self._delete_runs(sorted(set(what.run_ids)), _is_dead))
        if isinstance(what, OldNodes):
            rows = self._forget_nodes(what.keep_seconds) + self._forget_names(what.keep_seconds)
            self._forget_entries(what.keep_seconds)
            return Purged(rows + self._forget_locks(what.keep_seconds))
        if isinstance(what, WholeNamespace):
            return Purged(forget_namespace(self._place))
        return self._purge_keys(what) if isinstance(what, OldKeys) else self._purge_runs(what)

    def _page(self, scan: Scan) -> list[RunRecord]:
        return self._records(read_rows(self._place, RUN, self._ids(scan)))

    def _of_job(self, job_id: str, query: RunQuery) -> list[RunRecord]:
        """Return a page of the runs of a job, latest slot and attempt first."""
        index, last = runs_index(job_id), query.after
        scans = [Scan(index, limit=query.page_size, is_reversed=True)]
        if last is not None:
            slot = micros(last.scheduled_for)
            scans = [Scan(index, low=slot, high=slot), scans[0]._replace(high=slot - 1)]
        scanned = self._place.read(scans=scans).scanned
        ids = {run_id: slot for one in scanned for run_id, slot in one.ids}
        if ids and len(scanned[-1].ids) == query.page_size:
            # The page may end among the attempts of a slot, which are in order of their ids there.
            slot = min(ids.values())
            ids |= dict(self._place.read(scans=[Scan(index, low=slot, high=slot)]).scanned[0].ids)
        # That of a one-off stands in no such index: it has its id.
        records = self._records(read_rows(self._place, RUN, list(ids) or [job_id]))
        records.sort(key=_slot_order, reverse=True)
        return [run for run in records if last is None or _slot_order(run) < _slot_order(last)][: query.page_size]

    def _records(self, rows: Rows) -> list[RunRecord]:
        return [record_of(RunRecord, row, {"run_id": run_id}) for run_id, row in rows.items()]

    def _purge_runs(self, what: OldRuns) -> Purged:
        """Delete a batch of old runs, the oldest slots first."""
        until = after(self._place.read().now, -what.keep_seconds)
        low, last = None if what.after is None else micros(what.after), None
        limit, rows = what.limit or _BATCH, 0
        tried: set[str] = set()
        """The runs at the instant up to which the last part went."""
        while rows < limit:
            old = [run for run in self._old_runs(low, until, limit - rows + len(tried)) if run[1] not in tried]
            if not (part := old[: limit - rows]):
                break
            rows += self._delete_old({run_id: state for _, run_id, state in part}, until)
            last = part[-1][0]
            tried = (tried if last == low else set()) | {run_id for slot, run_id, _ in part if slot == last}
            low = last
        return Purged(rows, last=None if last is None else instant(last), limit=limit, rest=_REST)

    def _old_runs(self, low: int | None, until: int, limit: int) -> list[tuple[int, str, str]]:
        """Return the slots, ids and states of ended runs, the oldest slots first."""
        kinds = [(state, is_one_off) for state in _PURGED_STATES for is_one_off in (False, True)]
        scans = [Scan(slots_index(*kind), low=low, high=until - 1, limit=limit) for kind in kinds]
        scanned = self._place.read(scans=scans).scanned
        runs = [
            (slot, run_id, state) for (state, _), one in zip(kinds, scanned, strict=True) for run_id, slot in one.ids
        ]
        return sorted(runs)[:limit]

    def _delete_old(self, runs: Mapping[str, str], until: int) -> int:
        """Delete runs that ended long ago, and that no job waits for; their states are given."""
        failed = read_rows(self._place, RUN, [run_id for run_id, state in runs.items() if state == RETRY])
        jobs = read_rows(self._place, JOB, sorted({run["job_id"] for run in failed.values()}))
        awaited = {job.get("retry_run_id") for job in jobs.values()}

        def may_go(run_id: str, run: Row) -> bool:
            return (
                run["state"] in _PURGED_STATES
                and run.get("due_at") is None
                and run.get("finished_at", until) < until
                and run_id not in awaited
            )

        return self._delete_runs(list(runs), may_go)

    def _delete_runs(self, run_ids: Sequence[str], may_go: Callable[[str, Row], bool]) -> int:
        """Delete those of the runs that may go, and a one-off with its run."""

        def delete(view: View, run_id: str) -> bool:
            row = view.row(RUN, run_id)
            if row is None or not may_go(run_id, row):
                return False
            if row.get("kind") == ONE_OFF:
                view.remove(JOB, run_id)
            view.remove(RUN, run_id)
            return True

        return sum(sure(carry_out(self._place, run_ids, lambda run_id: [(RUN, run_id)], delete)))

    def _purge_keys(self, what: OldKeys) -> Purged:
        """Forget a batch of idempotency keys that stand for no run any more."""

        def forget(view: View, key: str) -> bool:
            row = view.row(KEY, key)
            if row is None or row["ends_at"] > view.now:
                return False
            view.remove(KEY, key)
            return True

        limit = what.limit or _BATCH
        ended = self._ids(Scan(KEYS, high=self._place.read().now, limit=limit))
        rows = sum(sure(carry_out(self._place, ended, lambda key: [(KEY, key)], forget)))
        return Purged(rows, limit=limit, rest=_REST)

    def _forget_nodes(self, keep_seconds: float) -> int:
        """Forget the nodes that were silent for so long, and have not come back."""

        def forget(view: View, node_id: str) -> bool:
            row = view.row(NODE, node_id)
            if row is None or row["heartbeat_at"] >= after(view.now, -keep_seconds):
                return False
            for table in (NODE, TASKS):
                view.remove(table, node_id)
            return True

        def keys(node_id: str) -> list[Key]:
            return [(NODE, node_id), (TASKS, node_id)]

        return sum(sum(sure(carry_out(self._place, ids, keys, forget))) for ids in self._older(NODES, keep_seconds))

    def _forget_names(self, keep_seconds: float) -> int:
        """Forget names that were deleted so long ago; the floor of the fences stands for them."""

        def forget(view: View, names: Sequence[str]) -> int:
            rows = {name: row for name in names if (row := view.row(NAME, name)) and not row.get("job_id")}
            store = view.row(*STORE)
            if not rows or store is None:
                return 0
            # Together with the names, so that a job that is added meanwhile sees one of both.
            store["fence_floor"] = max(store.get("fence_floor", 0), *(row["fence"] for row in rows.values()))
            for name in rows:
                view.remove(NAME, name)
            return len(rows)

        def keys(names: Sequence[str]) -> list[Key]:
            return [STORE, *((NAME, name) for name in names)]

        pages = self._older(DELETED, keep_seconds)
        return sum(sum(sure(carry_out(self._place, [names], keys, forget))) for names in pages)

    def _forget_locks(self, keep_seconds: float) -> int:
        """Forget locks that nobody has taken for so long; the floor stands for their fences."""
        until = after(self._place.read().now, -keep_seconds)

        def forget(view: View, keys: Sequence[str]) -> int:
            rows = {key: row for key in keys if (row := view.row(LOCK, key)) and row["taken_at"] < until}
            free = {key: row for key, row in rows.items() if (row.get("lease_ends_at") or 0) <= view.now}
            store = view.row(*STORE)
            if not free or store is None:
                return 0
            # Together with the locks, so that whoever takes one meanwhile sees one of both.
            store["fence_floor"] = max(store.get("fence_floor", 0), *(row["fence"] for row in free.values()))
            for key in free:
                view.remove(LOCK, key)
            return len(free)

        keys = [key for key, _ in self._place.read(scans=[Scan(TAKEN, high=until - 1)]).scanned[0].ids]
        pages = list(parts(keys))
        return sum(sure(carry_out(self._place, pages, lambda page: [STORE, *((LOCK, key) for key in page)], forget)))

    def _forget_entries(self, keep_seconds: float) -> None:
        """Forget what releases had in their code of which no beat has been alive for so long.

        A beat of such a release tells it again as it starts.
        """
        known = {
            release_id(row["code_owner"], row["code_release"])
            for row in read_rows(self._place, NODE, self._ids(Scan(NODES))).values()
            if row.get("code_owner") is not None and row.get("code_release") is not None
        }

        def forget(view: View, row_id: str) -> None:
            row = view.row(RELEASE, row_id)
            if row is not None:
                row["entries"] = None

        until = after(self._place.read().now, -keep_seconds)
        old = [row_id for row_id in self._ids(Scan(RELEASES, high=until - 1)) if row_id not in known]
        sure(carry_out(self._place, old, lambda row_id: [(RELEASE, row_id)], forget))

    def _older(self, index_name: str, keep_seconds: float) -> Iterator[list[str]]:
        """Return ids in parts, as long as each part leaves the index."""
        until, last = after(self._place.read().now, -keep_seconds), list[str]()
        while (ids := self._ids(Scan(index_name, high=until - 1, limit=_BATCH))) and ids != last:
            yield ids
            last = ids

    def _ids(self, scan: Scan) -> list[str]:
        (scanned,) = self._place.read(scans=[scan]).scanned
        return [row_id for row_id, _ in scanned.ids]


def _is_dead(_: str, run: Row) -> bool:
    return bool(run["state"] == DLQ)


def _slot_order(run: RunRecord) -> tuple[object, int]:
    return run.scheduled_for, run.attempt
