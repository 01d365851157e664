"""What becomes of the rows of a `beat_schedule`: which are added, changed, or have left the code.

Pure, as the planner of claims is: it runs in the transaction of an import. What needs a custom schedule class is asked
before, by `first_runs`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.beat.custom import CustomSlots
from celery_sqlbeat.beat.entries import CodeEntry, CodeSchedule
from celery_sqlbeat.beat.questions import Questions
from celery_sqlbeat.definition import Rules, read_definition
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.ids import Ids
from celery_sqlbeat.model import (
    CODE_SCHEDULE,
    LEFT_THE_CODE,
    Beside,
    CodeAddition,
    CodeChange,
    CodeChanges,
    CodeDefinition,
    CodeRow,
)
from celery_sqlbeat.policy import fields_from_text
from celery_sqlbeat.schedule import Every, parse

_ALONE = Beside()
_FIRST_SECONDS = 3.0  # for the custom schedule classes of an app, before its beat begins without their answers


class StockRun(NamedTuple):
    """What stock beat knew of an entry: from when it counts, and whether it ever ran."""

    last_run_at: datetime
    has_run: bool
    is_stocks: bool = True
    """Whether it was stock beat that ran it; these beats write their runs into its file, too."""


def first_runs(
    code: CodeSchedule,
    now: datetime,
    stock: Mapping[str, StockRun] | None = None,
    questions: Questions | None = None,
) -> dict[str, datetime]:
    """When the entries of custom schedule classes are due first, by job name. Runs their code, so it may take long.

    With `questions` it takes a few seconds at most; entries that do not answer are left out, and asked when claimed.
    """
    before = stock or {}
    slots = {
        name: CustomSlots(
            one.entry, before[name].last_run_at if name in before else now, one.definition.code_key or name, questions
        )
        for name, one in code.entries.items()
        if one.definition.schedule == CODE_SCHEDULE
    }
    found = {name: one.first_slot(now) for name, one in slots.items()}
    if questions is not None and None in found.values():
        questions.settle(_FIRST_SECONDS)
        found = {name: one.first_slot(now) for name, one in slots.items()}
    return {name: at for name, at in found.items() if at is not None}


def custom_slots(
    code: CodeSchedule, since: Mapping[str, datetime], questions: Questions | None = None
) -> dict[str, CustomSlots]:
    """The slots of the custom schedule classes, by code key, as a planner of claims takes them."""
    return {
        key: CustomSlots(one.entry, since.get(one.definition.job_name), key, questions)
        for key, one in code.by_key().items()
        if one.definition.schedule == CODE_SCHEDULE
    }


class CodePlanner:
    """Plans one import; `stock` is what stock beat knew, for the switch from it."""

    def __init__(
        self,
        code: CodeSchedule,
        rules: Rules,
        first: Mapping[str, datetime] | None = None,
        stock: Mapping[str, StockRun] | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._code = code
        self._rules = rules
        self._first = first or {}
        self._stock = stock or {}
        self._ids = ids or Ids()
        self.since: dict[str, datetime] = {}
        """From when the entries of custom schedule classes count that never ran, by job name; known after a plan."""

    def __call__(self, now: datetime, rows: Sequence[CodeRow], beside: Beside = _ALONE) -> CodeChanges:
        """What makes these rows, which are all of this owner, say what the code says.

        What newer releases of the owner have beside this one is theirs to define, and what any of them has did not
        leave the code.
        """
        known = {row.job_name: row for row in rows}
        self._note_since(now, known)
        theirs = beside.newer or frozenset()
        new = [one for name, one in self._code.entries.items() if name not in known and name not in theirs]
        additions = [
            self._addition(job_id, one.definition, now)
            for job_id, one in zip(self._ids.run_ids(len(new)), new, strict=True)
        ]
        changes = []
        departures = []
        spared = set()
        for row in rows:
            one = self._code.entries.get(row.job_name)
            if row.delete_requested:
                continue
            if one is not None:
                change = None if row.job_name in theirs else self._change(row, one, now)
                if change is not None:
                    changes.append(change)
            elif row.enabled and row.job_name not in self._code.wrong:
                if beside.has(row.job_name):
                    spared.add(row.job_name)
                else:
                    departures.append(row)
        return CodeChanges(additions, changes, departures, frozenset(spared))

    def _note_since(self, now: datetime, known: Mapping[str, CodeRow]) -> None:
        for name, one in self._code.entries.items():
            if one.definition.schedule == CODE_SCHEDULE:
                row, stock = known.get(name), self._stock.get(name)
                at = row.created_at if row is not None else stock.last_run_at if stock is not None else now
                self.since[name] = at if isinstance(at, datetime) else now

    def _addition(self, job_id: str, definition: CodeDefinition, now: datetime) -> CodeAddition:
        stock = self._stock.get(definition.job_name)
        # What stock beat has missed is due at once, as there; the claim sees how many slots that are.
        since = now if stock is None else stock.last_run_at
        first = self._first_slot(_as_row(job_id, definition), since, now)
        return CodeAddition(job_id, definition, first, stock.last_run_at if stock and stock.has_run else None)

    def _change(self, row: CodeRow, one: CodeEntry, now: datetime) -> CodeChange | None:
        definition = one.definition
        if not one.has_own_zone:
            definition = definition._replace(time_zone=_zone_by_hand(row) or definition.time_zone)
        stock = self._stock.get(row.job_name)
        if stock is not None and _went_on(row, stock):
            first = self._first_slot(row._replace(**definition._asdict()), stock.last_run_at, now)
            return CodeChange(row, definition, True, first)
        returns = row.disabled_reason == LEFT_THE_CODE
        if not returns and _text_of(row) == definition[1:]:
            return None
        reschedule = _is_another_schedule(row, definition)
        if returns and not reschedule:
            # While it was gone it had no slots.
            reschedule = not isinstance(row.next_run_time, datetime) or row.next_run_time <= now
        first = None
        if reschedule:
            first = self._first_slot(row._replace(**definition._asdict()), _counts_from(row, definition, now), now)
            if first is not None and first < now:
                first = now
        return CodeChange(row, definition, reschedule, first)

    def _first_slot(self, row: CodeRow, since: datetime, now: datetime) -> datetime | None:
        """None where the row says something that cannot work; whoever looks after such rows says what it is."""
        if row.schedule == CODE_SCHEDULE:
            return self._first.get(row.job_name, now)
        try:
            return read_definition(row, self._rules).timeline.first_slot(since, None, row.job_id)
        except FieldError:
            return None


def _text_of(row: CodeRow) -> tuple[object, ...]:
    return (row.task_name, row.schedule, row.time_zone, row.args, row.kwargs, row.options, row.code_key)


def _went_on(row: CodeRow, stock: StockRun) -> bool:
    """Whether stock beat has run what is the next slot here: the shop went back to it for a while."""
    is_free = row.claimed_at is None and isinstance(row.next_run_time, datetime)
    return is_free and stock.is_stocks and stock.has_run and stock.last_run_at >= row.next_run_time


def _is_another_schedule(row: CodeRow, definition: CodeDefinition) -> bool:
    if row.schedule != definition.schedule:
        return True
    if definition.schedule == CODE_SCHEDULE:
        return row.code_key != definition.code_key
    return row.time_zone != definition.time_zone and not _is_plain_interval(definition.schedule)


def _counts_from(row: CodeRow, definition: CodeDefinition, now: datetime) -> datetime:
    """An interval that was changed counts from the last run, so that deployments do not put it off for ever."""
    if row.disabled_reason == LEFT_THE_CODE or not definition.schedule.startswith("every"):
        return now
    last = row.claimed_at or row.last_run_time
    return min(last, now) if isinstance(last, datetime) else now


def _is_plain_interval(text: str) -> bool:
    schedule = parse(text)
    return isinstance(schedule, Every) and not schedule.relative


def _zone_by_hand(row: CodeRow) -> str | None:
    """The time zone that somebody set in the policies of the row."""
    try:
        zone: str | None = fields_from_text(row.policies).get("timezone") if row.policies else None
    except FieldError:  # the row is set aside for it when it is due
        return None
    return zone


def _as_row(job_id: str, definition: CodeDefinition) -> CodeRow:
    job_name, task_name, schedule, time_zone, args, kwargs, options, code_key = definition
    return CodeRow(
        job_id,
        job_name,
        task_name,
        schedule,
        None,
        time_zone,
        args,
        kwargs,
        options,
        None,
        None,
        code_key,
        1,
        None,
        None,
        None,
        None,
        None,
        0,
        None,
    )
