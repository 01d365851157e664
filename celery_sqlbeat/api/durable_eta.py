"""Keep ordinary calls with an eta far ahead as one-offs: `sqlbeat_durable_eta`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from celery_sqlbeat import environment, events
from celery_sqlbeat.api.cancel import Canceller
from celery_sqlbeat.celery_bridge.far_calls import FarCall, divert
from celery_sqlbeat.errors import FieldError, SettingError
from celery_sqlbeat.model.lifecycle import RUNNING
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store.records import RunQuery

if TYPE_CHECKING:
    from celery_sqlbeat.api import Handle

REVOKED = "revoked"


def keep_far_calls(beat: Handle) -> None:
    """Let the app of a handle keep such calls, where its setting asks for that."""
    if environment.is_disabled():
        return

    def is_asked() -> bool:
        try:
            return beat.settings.durable_eta is not None
        except SettingError:  # it is told where this package is used, and stops no ordinary call
            return False

    def take(call: FarCall) -> bool:
        longest = beat.settings.durable_eta
        now = environment.now()
        at = call.eta if call.eta is not None else now + timedelta(seconds=call.countdown or 0)
        if longest is None or (at - now).total_seconds() <= longest or not _is_run_id(call.task_id):
            return False
        return _kept(beat, call)

    def revoked(task_ids: Sequence[str], terminates: bool) -> None:
        ids = [each for each in task_ids if _is_run_id(each)]
        store = beat.ready()
        runs = [run for run in store.runs(RunQuery(run_ids=ids)) if run.kind == ONE_OFF] if ids else []
        # As with any task: what runs already goes on unless it is to be terminated.
        ours = [run for run in runs if terminates or run.state != RUNNING]
        Canceller(beat.app, beat.ready).cancel(ours, REVOKED, None)

    divert(beat.app, is_asked, take, revoked)


def _kept(beat: Handle, call: FarCall) -> bool:
    """Submit a call; return False where a one-off could not keep it."""
    options = dict(call.options)
    if isinstance(options.get("expires"), (int, float)):  # from the call on, not from the publish
        options["expires"] = (environment.now() + timedelta(seconds=options["expires"])).isoformat()
    try:
        beat.one_offs.keep(
            call.task_id,
            {
                "task": call.task_name,
                "args": call.args,
                "kwargs": call.kwargs,
                "eta": call.eta,
                "countdown": None if call.eta is not None else call.countdown,
                "options": options,
                "max_retries": 0,  # as ever: what a task does not retry itself is not tried again
            },
        )
    except FieldError as error:
        events.advice(
            topic="durable eta",
            text=f"a call of task {call.task_name} is sent as ever, as no one-off keeps it ({error})",
            remedy="correct what it says, or raise sqlbeat_durable_eta",
        )
        return False
    return True


def _is_run_id(task_id: object) -> bool:
    try:
        return str(uuid.UUID(str(task_id))) == str(task_id)
    except ValueError:
        return False
