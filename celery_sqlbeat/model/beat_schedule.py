"""Hold the entries of a `beat_schedule` on their way into the table."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from celery_sqlbeat.config.validation import is_encodable

CODE_SCHEDULE = "code"  # in the place of a schedule that only the code itself can tell
LEFT_THE_CODE = "left the code"  # the reason of a row that only the return of its entry may enable again


class Claimable(NamedTuple):
    """The jobs that a beat may claim: those of no app, and those of its own app."""

    owner: str = ""
    """Its app; empty for the jobs of all apps."""
    code_keys: Sequence[str] = ()
    """Of the entries that only their code can build, those that it has."""
    other_entries: Sequence[str] = ()
    """Entries of its app that it lacks, as far as it knows: left out where rows are looked for."""
    own_entries: Collection[str] | None = None
    """All entries that it has; None for any."""

    def includes(self, job_name: str, owner: str | None) -> bool:
        """Return whether a job of that name and app is among them, as far as those decide."""
        if owner is None or self.owner == "":
            return True
        return self.owner == owner and (self.own_entries is None or job_name in self.own_entries)


class LivingRelease(NamedTuple):
    """A `beat_schedule` that some living beat has."""

    owner: str
    release: str
    beat: str
    """One of its beats."""
    first_seen_at: datetime | None
    """None: its beat is only just starting."""
    entries: dict[str, str] | None
    """A digest of each entry, by name; None where its beat does not tell."""


class Beside(NamedTuple):
    """What other living beats of an app have in their code."""

    newer: frozenset[str] | None = frozenset()
    """Entries of newer releases, whose definitions count; None where one of those does not tell."""
    others: frozenset[str] | None = frozenset()
    """Entries of all other releases, which did not leave the code."""

    def has(self, name: str) -> bool:
        """Return whether an entry may be in the code of another living beat.

        What does not tell may have any.
        """
        return self.others is None or name in self.others


class CodeDefinition(NamedTuple):
    """An entry of a `beat_schedule`, as the table keeps it."""

    job_name: str
    task_name: str
    schedule: str
    """`code` where only the entry itself knows when it is due."""
    time_zone: str
    args: str | None
    kwargs: str | None
    options: str | None
    code_key: str | None
    """Set where some of it is no text, so that only a beat that has the entry may claim it."""


class CodeRow(NamedTuple):
    """A row of `Jobs` that belongs to a `beat_schedule`, as `read_code_jobs` gives it."""

    job_id: str
    job_name: str
    task_name: Any
    schedule: Any
    interval_minutes: Any
    time_zone: Any
    args: Any
    kwargs: Any
    options: Any
    policies: Any
    lock_timeout_minutes: Any
    code_key: str | None
    enabled: int
    disabled_reason: str | None
    next_run_time: Any
    last_run_time: Any
    claimed_at: datetime | None
    """When the run that holds the job was claimed."""
    run_id: str | None
    delete_requested: int
    created_at: Any
    version: int
    fence: int

    def says(self, definition: CodeDefinition) -> bool:
        """Return whether the row has this definition already."""
        return definition == (
            definition.job_name,
            self.task_name,
            self.schedule,
            self.time_zone,
            self.args,
            self.kwargs,
            self.options,
            self.code_key,
        )


class CodeAddition(NamedTuple):
    """A job that a `beat_schedule` has and the table has not."""

    job_id: str
    definition: CodeDefinition
    next_run_time: datetime | None
    last_run_time: datetime | None


class CodeChange(NamedTuple):
    """A row that gets the definition of the code."""

    row: CodeRow
    definition: CodeDefinition
    reschedule: bool
    """Whether it gets this next run, too."""
    next_run_time: datetime | None


class CodeChanges(NamedTuple):
    """What makes the table say what the code says."""

    additions: list[CodeAddition]
    changes: list[CodeChange]
    departures: list[CodeRow]
    """Rows whose entry left the code."""
    spared: frozenset[str] = frozenset()
    """Names of rows whose entry left this code, and may be in that of another living beat."""

    def names(self) -> list[str]:
        """Return the names of the jobs that are written."""
        added = [a.definition.job_name for a in self.additions]
        return [*added, *(c.row.job_name for c in self.changes), *(row.job_name for row in self.departures)]

    def among(self, names: Collection[str]) -> "CodeChanges":
        """Return those that concern these jobs."""
        return self._replace(
            additions=[a for a in self.additions if a.definition.job_name in names],
            changes=[c for c in self.changes if c.row.job_name in names],
            departures=[row for row in self.departures if row.job_name in names],
        )


class CodeState(NamedTuple):
    """What an import is planned from, as it was read."""

    now: datetime
    rows: Sequence[CodeRow]
    """The owner's jobs."""
    beside: Beside


class CodeImport(NamedTuple):
    """What a release writes, once it is planned."""

    owner: str
    release: str
    entries: Mapping[str, str] | None
    """A digest of each of its entries, by name; None where it does not tell."""
    live_seconds: float
    beside: Beside
    """What the other living beats of the app had when it was planned."""
    changes: CodeChanges | None
    """None where it only registers, since newer releases define everything."""
    announce: bool = False
    """Whether other beats are to notice it even where no row changes."""


_LITERALS = (type(None), bool, int, str)


def as_json(value: object) -> str | None:
    """Return the JSON text that reads back as exactly this value, or None."""
    try:
        if not is_plain(value):
            return None
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # Half a character, as in a file name that is no UTF-8, can be written only by its number.
        return text if is_encodable(text) else json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):  # ValueError: an int of thousands of digits
        return None


def is_plain(value: object) -> bool:
    """Return whether JSON keeps this value as it is.

    A tuple would come back as a list, an Enum as its value.
    """
    kind = type(value)
    if kind in _LITERALS:
        return True
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]  # it is a float
    if isinstance(value, list) and kind is list:
        return all(map(is_plain, value))
    if isinstance(value, dict) and kind is dict:
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    return False
