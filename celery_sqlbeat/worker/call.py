"""What Celery wanted to run in a slot: run inside it, and its end told. For pools that run bodies in this process."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import WorkerLostError, WorkerShutdown, WorkerTerminate
from celery.worker import state

from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.execution import Execution
from celery_sqlbeat.worker.threshold import NotBegun
from celery_sqlbeat.worker.window import Window

# The answers to one batch let many tasks begin in one instant, and an early acknowledgement needs a connection of its
# own while it lasts. kombu has ten for Redis, and an error for the eleventh.
_acknowledging = threading.BoundedSemaphore(4)  # green where the slots are


class Call:
    """What Celery wanted to run in the slot, with its callbacks."""

    def __init__(self, pool: Any, target: Callable[..., Any], options: dict[str, Any]) -> None:
        self._target = target
        self._options = options
        self._pid = getattr(pool, "getpid", os.getpid)
        self._limit = (options.get("timeout") or getattr(pool, "timeout", None)) if _is_gevent(pool) else None

    def run(self, execution: Execution, window: Window) -> None:
        """Run the task here, and say how it ended."""
        execution.window = window
        req, options = execution.req, self._options
        if req.revoked():
            return
        try:
            with _acknowledging:
                options["accept_callback"](self._pid(), time.monotonic())
        except BaseException:
            execution.not_begun()
            raise
        try:
            result = window.run(partial(self._body, execution))
        except (WorkerShutdown, WorkerTerminate):
            execution.end(End.STOPPED)
            raise
        except _TimeOut as timeout:
            options["timeout_callback"](False, timeout.limit)
        except MemoryError:
            execution.end(End.FAILURE)
            raise
        except Exception:
            options["error_callback"](ExceptionInfo())
        except BaseException as error:
            if type(error).__name__ == "GreenletExit":
                _killed(execution)
            else:
                options["error_callback"](_lost(error))
        else:
            options["callback"](result)

    def _body(self, execution: Execution) -> Any:
        if not execution.begin_body():
            raise NotBegun
        if not self._limit:
            return self._target(*self._options["args"])
        from gevent import Timeout

        timer = Timeout(self._limit)
        try:
            with timer:
                return self._target(*self._options["args"])
        except Timeout as raised:
            if raised is not timer:
                raise
            raise _TimeOut(self._limit) from None


class _TimeOut(Exception):
    """The time limit of this task."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.limit = limit


def _is_gevent(pool: Any) -> bool:
    return type(pool).__module__.endswith(".gevent")


def _killed(execution: Execution) -> None:
    """A green thread was killed. Its pool would call that a success."""
    execution.end(End.STOPPED if execution.is_cancelled else End.REVOKED)
    state.task_ready(execution.req)
    execution.req.acknowledge()


def _lost(error: BaseException) -> ExceptionInfo:
    try:
        raise WorkerLostError(repr(error)) from error
    except WorkerLostError:
        return ExceptionInfo()
