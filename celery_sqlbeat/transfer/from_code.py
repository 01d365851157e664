"""`--from beat_schedule` and `--from shelve`: the entries of the code, and what stock beat wrote down of their runs.

They stay the code's, exactly as a beat imports them; here they come in before the first beat starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_sqlbeat.beat.entries import default_entries, job_name_of, read_entries
from celery_sqlbeat.beat.stock_file import entries_in, runs_in_code, runs_of
from celery_sqlbeat.config import Settings
from celery_sqlbeat.errors import SourceUnreadable
from celery_sqlbeat.transfer.arrivals import Shop


def from_beat_schedule(app: Any, settings: Settings) -> Shop:
    """The app's `beat_schedule`, with what Celery adds to it, exactly as a beat reads it."""
    app.loader.init_worker()  # tasks may add entries when they are imported, as they do in a beat
    app.finalize()
    schedule = app.conf.beat_schedule
    entries = {**default_entries(app, schedule), **schedule}
    shop = Shop(read_entries(app, entries, settings.release, settings.policies))
    shop.runs.update(runs_in_code(schedule))
    for problem in shop.code.problems:
        shop.leave(problem.name, problem.reason)
    return shop


def from_shelve(app: Any, settings: Settings, filename: str | None = None) -> Shop:
    """The entries of the code, which go on from the last runs in stock beat's file."""
    shop = from_beat_schedule(app, settings)
    found = _entries_in(filename or app.conf.beat_schedule_filename)
    runs = runs_of(found)
    for name in sorted(map(job_name_of, found)):
        if name in shop.code.entries and name in runs:
            shop.runs[name] = runs[name]
        elif name not in shop.code.wrong:
            shop.leave(name, "it left the beat_schedule; stock beat would drop it, too")
    return shop


def _entries_in(filename: str) -> Mapping[Any, Any]:
    try:
        found = entries_in(filename)
    except Exception as error:  # whatever unpickling raises
        raise SourceUnreadable(f"{filename} is not a file of stock beat, or cannot be read: {error}") from error
    if found is None:
        raise SourceUnreadable(f"there is no file {filename}: name the one that celery beat --schedule has")
    return found
