"""The error by which Celery takes an attempt that will be tried again for a retry of its own. Pickled by processes."""

from typing import Any

from celery.exceptions import Retry

from celery_sqlbeat.worker.reports import NO_REPORT, Report


class AttemptFailed(Retry):  # type: ignore[misc]  # Celery has no types
    """The attempt has failed, and another one follows: `on_retry`, `task_retry` and the state RETRY, not a failure."""

    def __init__(
        self, message: str | None = None, exc: Any = None, when: Any = None, told: Report = NO_REPORT, **options: Any
    ) -> None:
        """`exc` is what failed it, `when` the seconds until the next attempt, `told` what its row keeps of `exc`."""
        super().__init__(message, exc, when, **options)
        self.told = told

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.exc, self.when, self.told)


def attempt_failed(error: BaseException, seconds: float, told: Report) -> AttemptFailed:
    """What Celery is told of an attempt that this error has ended, and that is followed by another one."""
    return AttemptFailed(
        f"the attempt failed, another one follows in {seconds:.1f}s: {told.error}", error, seconds, told
    )
