"""Plan which rows of a `beat_schedule` are added, changed, or have left the code.

Pure, between a read and a write of the table. `first_runs` asks custom schedule classes before.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.beat_schedule.custom_schedule import CustomSlots, ScheduleQuestions
from celery_sqlbeat.beat_schedule.entries import CodeEntry, CodeSchedule
from celery_sqlbeat.config.payload_key import is_sealed
from celery_sqlbeat.config.policy import fields_from_text
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.errors import FieldError
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
from celery_sqlbeat.model.definition import Rules, read_definition
from celery_sqlbeat.schedule import Every, parse

_ALONE = Beside()
_FIRST_SECONDS = 3.0  # for an app's custom schedule classes, until its beat begins without answers


class StockRun(NamedTuple):
    """What stock beat knows of an entry: from when it counts, and whether it ever ran."""

    last_run_at: datetime
    has_run: bool
    is_stocks: bool = True
    """Whether stock beat ran it, and not a beat of this package that wrote into its file."""


def first_runs(
    code: CodeSchedule,
    now: datetime,
    stock: Mapping[str, StockRun] | None = None,
    questions: ScheduleQuestions | None = None,
) -> dict[str, datetime]:
    """Return when the entries of custom schedule classes are due first, by job name.

    Their code may take long: with `questions` this takes a few seconds at most. Entries that do not
    answer are left out, and asked at their claim.
    """
    before = stock or {}
    slots = {
        name: CustomSlots(
            entry.entry,
            before[name].last_run_at if name in before else now,
            entry.definition.code_key or name,
            questions,
        )
        for name, entry in code.entries.items()
        if entry.definition.schedule == CODE_SCHEDULE
    }
    first = {name: slot.first_slot(now) for name, slot in slots.items()}
    if questions is not None and None in first.values():
        questions.ask_new(_FIRST_SECONDS)
        first = {name: slot.first_slot(now) for name, slot in slots.items()}
    return {name: at for name, at in first.items() if at is not None}


def custom_slots(
    code: CodeSchedule, since: Mapping[str, datetime], questions: ScheduleQuestions | None = None
) -> dict[str, CustomSlots]:
    """Return the slots of the custom schedule classes, by code key, for a planner of claims."""
    return {
        key: CustomSlots(entry.entry, since.get(entry.definition.job_name), key, questions)
        for key, entry in code.by_key().items()
        if entry.definition.schedule == CODE_SCHEDULE
    }


class SchedulePlanner:
    """Plans imports of one `beat_schedule`; `stock` is what stock beat knows, for the switch."""

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
        """From when custom schedule entries count that never ran, by job name; set by a plan."""

    def __call__(self, now: datetime, rows: Sequence[CodeRow], beside: Beside = _ALONE) -> CodeChanges:
        """Plan the changes that make these rows, all of this owner's, say what the code says.

        Newer releases of the owner that live beside this one define their entries; an entry that
        any release has did not leave the code.
        """
        known = {row.job_name: row for row in rows}
        self._note_since(now, known)
        theirs = beside.newer or frozenset()
        new = [entry for name, entry in self._code.entries.items() if name not in known and name not in theirs]
        additions = [
            self._addition(job_id, entry.definition, now)
            for job_id, entry in zip(self._ids.run_ids(len(new)), new, strict=True)
        ]
        changes = []
        departures = []
        spared = set()
        for row in rows:
            entry = self._code.entries.get(row.job_name)
            if row.delete_requested or is_sealed(row.args) or is_sealed(row.kwargs):
                continue  # a beat that can read it writes it
            if entry is not None:
                change = None if row.job_name in theirs else self._change(row, entry, now)
                if change is not None:
                    changes.append(change)
            elif row.enabled and row.job_name not in self._code.wrong:
                if beside.has(row.job_name):
                    spared.add(row.job_name)
                else:
                    departures.append(row)
        return CodeChanges(additions, changes, departures, frozenset(spared))

    def _note_since(self, now: datetime, known: Mapping[str, CodeRow]) -> None:
        for name, entry in self._code.entries.items():
            if entry.definition.schedule == CODE_SCHEDULE:
                row, stock = known.get(name), self._stock.get(name)
                at = row.created_at if row is not None else stock.last_run_at if stock is not None else now
                self.since[name] = at if isinstance(at, datetime) else now

    def _addition(self, job_id: str, definition: CodeDefinition, now: datetime) -> CodeAddition:
        stock = self._stock.get(definition.job_name)
        # What stock beat has missed is due at once, as there; the claim counts the slots.
        since = now if stock is None else stock.last_run_at
        first = self._first_slot(_as_row(job_id, definition), since, now)
        return CodeAddition(job_id, definition, first, stock.last_run_at if stock and stock.has_run else None)

    def _change(self, row: CodeRow, entry: CodeEntry, now: datetime) -> CodeChange | None:
        definition = entry.definition
        if not entry.has_own_zone:
            definition = definition._replace(time_zone=_zone_by_hand(row) or definition.time_zone)
        stock = self._stock.get(row.job_name)
        if stock is not None and _went_on(row, stock):
            first = self._first_slot(row._replace(**definition._asdict()), stock.last_run_at, now)
            return CodeChange(row, definition, True, first)
        returns = row.disabled_reason == LEFT_THE_CODE
        if not returns and row.says(definition):
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
        """Return the first slot; None where the row is wrong, which housekeeping reports."""
        if row.schedule == CODE_SCHEDULE:
            return self._first.get(row.job_name, now)
        try:
            return read_definition(row, self._rules).timeline.first_slot(since, None, row.job_id)
        except FieldError:
            return None


def _went_on(row: CodeRow, stock: StockRun) -> bool:
    """Return whether stock beat has run the next slot: the shop went back to it for a while."""
    is_free = row.claimed_at is None and isinstance(row.next_run_time, datetime)
    return is_free and stock.is_stocks and stock.has_run and stock.last_run_at >= row.next_run_time


def _is_another_schedule(row: CodeRow, definition: CodeDefinition) -> bool:
    if row.schedule != definition.schedule:
        return True
    if definition.schedule == CODE_SCHEDULE:
        return row.code_key != definition.code_key
    return row.time_zone != definition.time_zone and not _is_plain_interval(definition.schedule)


def _counts_from(row: CodeRow, definition: CodeDefinition, now: datetime) -> datetime:
    """Return from when a changed schedule counts.

    For an interval it is the last run, or frequent deployments would put it off for ever.
    """
    if row.disabled_reason == LEFT_THE_CODE or not definition.schedule.startswith("every"):
        return now
    last = row.claimed_at or row.last_run_time
    return min(last, now) if isinstance(last, datetime) else now


def _is_plain_interval(text: str) -> bool:
    schedule = parse(text)
    return isinstance(schedule, Every) and not schedule.relative


def _zone_by_hand(row: CodeRow) -> str | None:
    """Return the time zone that somebody set in the policies of the row."""
    try:
        zone: str | None = fields_from_text(row.policies).get("timezone") if row.policies else None
    except FieldError:  # the row is quarantined for it when it is due
        return None
    return zone


def _as_row(job_id: str, definition: CodeDefinition) -> CodeRow:
    nothing = dict.fromkeys(CodeRow._fields)
    return CodeRow(**{**nothing, **definition._asdict(), "job_id": job_id, "enabled": 1, "delete_requested": 0})
