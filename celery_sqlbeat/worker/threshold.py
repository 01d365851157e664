"""The last look before a body begins: whatever stood still since its lease was taken, it may be somebody else's by now.

Between the start in the database and the first line of the body lie a queue, a pipe to a child and an acknowledgement.
A machine that stands still there for longer than the lease must not run the body after another worker has.
"""

from collections.abc import Callable, Mapping
from typing import Any

from celery.exceptions import Ignore
from celery.worker.request import Request

from celery_sqlbeat.worker.running import begin, has_begun


class NotBegun(Ignore):  # type: ignore[misc]  # Celery has no types; to it the task has ended, and nothing is stored
    """Instead of the body: the lease of its run is lost, or about to end, or was given back."""


class BegunBefore(NotBegun):
    """The process that began the body is gone, and before it could say so: Celery's pool gives its task to another."""


def cross(trace: Callable[..., Any], task: str, run: str, request: Mapping[str, Any], *rest: Any) -> Any:
    """In the process of the pool: what Celery would run there, if it still may."""
    if has_begun(request):
        raise BegunBefore
    if not begin(request):
        raise NotBegun
    return trace(task, run, request, *rest)


class _Threshold:
    """A pool whose processes look before they begin."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def apply_async(self, target: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> Any:
        """Hand over, with the look before it."""
        return self._pool.apply_async(cross, args=(target, *args), **options)


def hand_over(req: Any, pool: Any, **_: Any) -> Any:
    """Instead of a request's `execute_using_pool`, for a pool of processes: with the look before the body."""
    return Request.execute_using_pool(req, _Threshold(pool))
