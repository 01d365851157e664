"""What may be changed of a job that a `beat_schedule` defines: its policies, and whether it runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from celery_sqlbeat.definition import Rules, read_definition
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.handle.drafting import Text, flag, given_policies, policies_text
from celery_sqlbeat.handle.rescheduling import Change, Resumption, is_asked_of_code, is_held, resumption, text_of
from celery_sqlbeat.model import LEFT_THE_CODE, JobRecord


def code_change_of(
    row: JobRecord, given: Mapping[str, object], enabled: object, policies: Mapping[str, object], rules: Rules
) -> tuple[Text, Change] | None:
    """What the row becomes; None where it is that already. `given` is what only the code may say."""
    for field, value in given.items():
        if value is not None:
            raise FieldError(field, value, f"{_remedy(row)}; as it is, it takes enabled and policies")
    wanted, own = flag("Enabled", enabled), given_policies(policies)
    text = text_of(row)._replace(policies=policies_text(own), lock_timeout_minutes=None)
    if "timezone" in own:
        text = text._replace(time_zone=own["timezone"])
    change = _change(row, text, None if wanted is bool(row.enabled) else wanted, rules)
    return None if text == text_of(row) and change.enabled is None else (text, change)


def resumption_of(row: JobRecord, rules: Rules) -> Resumption:
    """How a paused job goes on, whoever defines it."""
    if is_held(row):
        return Resumption(row.next_run_time, None, False)
    if is_asked_of_code(row):
        # A beat that has the entry asks it, and puts it off until it is due.
        due = row.next_run_time
        return Resumption(due if isinstance(due, datetime) and due > row.now else row.now, None, False)
    return resumption(row, read_definition(text_of(row), rules))


def _change(row: JobRecord, text: Text, enabled: bool | None, rules: Rules) -> Change:
    if not is_asked_of_code(row):
        definition = read_definition(text, rules)
        if text.time_zone != row.time_zone:
            return Change(True, definition.timeline.first_slot(row.now, None, row.job_id), enabled, None)
    if enabled:
        at = resumption_of(row, rules)
        moves = not at.finished and at.next_run_time != row.next_run_time
        return Change(moves, at.next_run_time, None if at.finished else True, at.gap)
    return Change(False, None, enabled, None)


def _remedy(row: JobRecord) -> str:
    if row.disabled_reason == LEFT_THE_CODE:
        return f"its entry has left the beat_schedule of {row.code_owner}: delete it, and define it anew"
    return f"the beat_schedule of {row.code_owner} defines this job: change it there"
