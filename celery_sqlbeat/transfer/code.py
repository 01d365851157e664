"""The entries of a `beat_schedule` on their way in, as the first beat would bring them, but with what a scheduler knew.

They stay the code's. Of an entry that is there already the state stays, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from celery_sqlbeat.beat.code import CodePlanner, first_runs
from celery_sqlbeat.beat.entries import shown_release
from celery_sqlbeat.config import Settings
from celery_sqlbeat.definition import Rules
from celery_sqlbeat.model import CODE_SCHEDULE, CodeAddition, CodeDefinition, JobRecord
from celery_sqlbeat.store import Store
from celery_sqlbeat.transfer.arrivals import Left, Shop
from celery_sqlbeat.transfer.plan import CHANGE, CODE, SAME, Step, left_behind

_PAGE = 500  # rows that are read at a time
_PAUSED = "disabled in the old scheduler"


def bring_code(store: Store, settings: Settings, rules: Rules, shop: Shop, dry_run: bool) -> list[Step]:
    """Bring the entries in; returns what became of each, or with `dry_run` what would."""
    code = shop.code
    if not code.entries:
        return []
    now = store.nodes().clock()
    there = _rows(store, shop)
    plan = CodePlanner(code, rules, first_runs(code, now, shop.runs), shop.runs)
    new = {one.definition.job_name: one for one in plan(now, []).additions if one.definition.job_name not in there}
    left: dict[str, str] = {}
    if not dry_run:
        done = store.for_code().import_code(code.owner, code.release, plan, settings.beat_alive, code.told())
        theirs = code.entries.keys() if done.beside.newer is None else code.entries.keys() & done.beside.newer
        reason = f"release {shown_release(done.winner)} of {code.owner} has a live beat and defines the jobs"
        left.update(dict.fromkeys(theirs, reason))
        if theirs == code.entries.keys():
            return [left_behind(Left(name, why)) for name, why in sorted(left.items())]
        left.update({name: f"the database refuses its row: {why}" for name, why in done.refused.items()})
        for name in sorted(shop.paused & {*done.added}):
            store.for_admin().pause(name, _PAUSED)
    steps = [left_behind(Left(name, why)) for name, why in left.items()]
    steps += [_step_of_new(one, shop) for name, one in new.items() if name not in left]
    rows = [row for name, row in there.items() if name not in left]
    steps += [step for row in rows if (step := _step_of_row(row, shop)) is not None]
    return sorted(steps, key=lambda step: step.name)


def _rows(store: Store, shop: Shop) -> Mapping[str, JobRecord]:
    """What the table has under these names, and what else of this code."""
    admin, after = store.for_admin(), ""
    found: dict[str, JobRecord] = {}
    while page := admin.list_jobs(_PAGE, after):
        after = page[-1].job_name
        for row in page:
            if row.code_owner == shop.code.owner or row.job_name in shop.code.entries:
                found[row.job_name] = row
    return found


def _step_of_new(addition: CodeAddition, shop: Shop) -> Step:
    definition = addition.definition
    remarks = [f"the beat_schedule of {shop.code.owner} goes on to define it"]
    if definition.schedule == CODE_SCHEDULE:
        remarks.append("only the code knows its schedule")
    if definition.job_name in shop.paused:
        remarks.append(_PAUSED)
    at, last = addition.next_run_time, addition.last_run_time
    return Step(definition.job_name, CODE, definition.schedule, at, last, tuple(remarks))


def _step_of_row(row: JobRecord, shop: Shop) -> Step | None:
    name = row.job_name
    if row.code_owner != shop.code.owner:
        return left_behind(Left(name, f"a job of {row.code_owner or 'the table'} has this name already"))
    if name in shop.code.entries:
        definition = shop.code.entries[name].definition
        what, remark = SAME, "a beat has brought it already"
        if _differs(row, definition):
            what, remark = CHANGE, "its entry has changed since a beat brought it"
        return Step(name, what, definition.schedule, row.next_run_time, row.last_run_time, (remark,))
    if row.enabled and name not in shop.code.wrong:
        return Step(name, CHANGE, row.schedule, None, row.last_run_time, ("it left the beat_schedule: disabled",))
    return None


def _differs(row: JobRecord, definition: CodeDefinition) -> bool:
    now = (row.task_name, row.schedule, row.args, row.kwargs, row.options, row.code_key)
    _, task_name, schedule, _, args, kwargs, options, code_key = definition
    return now != (task_name, schedule, args, kwargs, options, code_key)
