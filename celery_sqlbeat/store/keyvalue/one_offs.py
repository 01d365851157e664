"""Submit one-offs under their keys, and cancel runs of jobs and of one-offs."""

from collections.abc import Sequence
from functools import partial

from celery_sqlbeat.model.one_offs import Cancellation, CancelRequest, OneOff, Submitted
from celery_sqlbeat.store.keyvalue.one_off_rows import cancel, submit
from celery_sqlbeat.store.keyvalue.rows import Key, Place
from celery_sqlbeat.store.keyvalue.tables import JOB, KEY, RUN, STORE
from celery_sqlbeat.store.keyvalue.units import carry_out, sure


class OneOffs:
    """What submitters do to one place, and whoever cancels."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def submit(self, one_offs: Sequence[OneOff], submitter: str, dispatch_seconds: float) -> dict[str, Submitted]:
        """Add one-offs, and say which run each stands for, by the run id that was asked for."""
        write = partial(submit, submitter=submitter, dispatch_seconds=dispatch_seconds)
        answers = sure(carry_out(self._place, one_offs, _of_one_off, write))
        return {one_off.run_id: answer for one_off, answer in zip(one_offs, answers, strict=True)}

    def cancel(self, requests: Sequence[CancelRequest]) -> dict[str, Cancellation]:
        """End runs that have not begun, and ask the workers of the others to stop them."""
        answers = sure(carry_out(self._place, requests, _of_request, cancel))
        known = zip(requests, answers, strict=True)
        return {request.run_id: answer for request, answer in known if answer is not None}


def _of_one_off(one_off: OneOff) -> list[Key]:
    return [STORE, (RUN, one_off.run_id), *([] if one_off.key is None else [(KEY, one_off.key.text)])]


def _of_request(request: CancelRequest) -> list[Key]:
    return [(RUN, request.run_id), (JOB, request.run_id)]  # of a one-off the second one as well
