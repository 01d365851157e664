"""The tasks that workers of tests run.

Each writes into a file when its body begins and how it ends.

The file is the witness: it knows nothing of the database, and a line is one write.
"""

import ctypes
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from celery import shared_task
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.signals import task_postrun

from celery_sqlbeat import current_run
from celery_sqlbeat.errors import LeaseLost, RunCancelled

STEP = 0.02  # seconds between two bytecodes at which a stop can reach a thread


def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a task of every app, bound to itself."""
    made: Callable[[Callable[..., Any]], Any] = shared_task(name=f"work.{name}", bind=True, **options)
    return made


def tell(task: Any, what: str, **facts: Any) -> None:
    """Write a line: a single small write in append mode is neither torn nor mixed with another."""
    run = current_run()
    line = {
        "what": what,
        "task": task.name,
        "run": task.request.id,
        "retries": task.request.retries,
        "pid": os.getpid(),
        "at": time.time(),
        "job": task.request.get("periodic_task_name"),
        "attempt": run.attempt if run else None,
        "fence": run.fence if run else None,
        **facts,
    }
    file = os.open("witness.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


@contextmanager
def witnessed(task: Any) -> Iterator[None]:
    """Write down the begin and the end of a body, whatever ends it."""
    how, has_told = "end", False
    try:
        tell(task, "start")
        yield
    except BaseException as error:
        how = type(error).__name__
        raise
    finally:
        while not has_told:  # in threads a stop may be raised in the midst of telling
            try:
                tell(task, how)
                has_told = True
            except BaseException as error:
                how = type(error).__name__
                if not isinstance(error, LeaseLost | RunCancelled):
                    raise


@task("note")
def note(self: Any, *args: Any) -> int:
    """End at once."""
    with witnessed(self):
        return len(args)


@task("sleep")
def sleep(self: Any, seconds: float, afterwards: float | None = None) -> None:
    """Sleep in small steps; in later attempts for another while."""
    run = current_run()
    with witnessed(self):
        _sleep(seconds if afterwards is None or run is None or run.attempt == 1 else afterwards)


@task("doze")
def doze(self: Any, seconds: float) -> None:
    """Sleep in one piece, which no exception interrupts in a thread."""
    with witnessed(self):
        time.sleep(seconds)


@task("swallow")
def swallow(self: Any, seconds: float) -> None:
    """Go on, whatever is raised: what some libraries do to SystemExit."""
    with witnessed(self):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                time.sleep(STEP)
            except BaseException as error:
                tell(self, "swallowed", error=type(error).__name__)


@task("watch")
def watch(self: Any, seconds: float) -> None:
    """Look whether the lease is lost, or the run cancelled.

    Whatever interrupts this from outside, say what is known at that moment.
    """
    with witnessed(self):
        try:
            _look(seconds)
        except BaseException as error:
            run = current_run()
            assert run is not None
            told = {"lost": run.lost, "cancelled": run.cancelled, "checked": _is_refused(run)}
            tell(self, "lost", **told, error=type(error).__name__)
            raise


@task("facts")
def facts(self: Any) -> None:
    """Say what a task can know of its run."""
    run = current_run()
    with witnessed(self):
        if run is None:
            tell(self, "facts", known=False, headers=sorted(self.request.headers or {}))
            return
        run.check()
        scheduled_for = run.scheduled_for.isoformat()
        tell(self, "facts", known=True, name=run.job_name, scheduled_for=scheduled_for, lost=run.lost)


@task("show")
def show(self: Any) -> None:
    """Print all that Celery tells it, as people do who look for an error."""
    with witnessed(self):
        print(f"Request: {self.request!r}", flush=True)


@task("pass_on")
def pass_on(self: Any) -> None:
    """Send other tasks with all own headers but the one by which the witness knows jobs."""
    with witnessed(self):
        headers = {name: value for name, value in self.request.headers.items() if name != "periodic_task_name"}
        for name in ("facts", "nobody_has_this", "fail"):
            self.app.send_task(f"work.{name}", headers=headers)


@task("hold_gil")
def hold_gil(self: Any, seconds: float) -> None:
    """Keep the interpreter's lock in C, so that no other thread of this process runs."""
    with witnessed(self):
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@task("fail")
def fail(self: Any) -> NoReturn:
    """Fail at once."""
    with witnessed(self):
        raise ValueError("no luck today")


@task("brief")
def brief(self: Any) -> None:
    """Take a random moment."""
    with witnessed(self):
        time.sleep(random.random() * 0.4)


@task("fail_until")
def fail_until(self: Any, attempt: int) -> None:
    """Fail until this attempt."""
    with witnessed(self):
        run = current_run()
        assert run is not None
        if run.attempt < attempt:
            raise ValueError("no luck today")


@task("soft", soft_time_limit=1)
def soft(self: Any) -> None:
    """Run into the soft time limit."""
    with witnessed(self):
        _sleep(60)


@task("soft_caught", soft_time_limit=1)
def soft_caught(self: Any) -> None:
    """Run into the soft time limit, and end in order."""
    with witnessed(self):
        try:
            _sleep(60)
        except SoftTimeLimitExceeded:
            tell(self, "caught")


@task("hard", time_limit=1)
def hard(self: Any) -> None:
    """Run into the hard time limit."""
    with witnessed(self):
        _sleep(60)


@task("retry", max_retries=5)
def retry(self: Any, times: int, countdown: float = 0.5) -> None:
    """Let Celery itself try again so many times, then succeed."""
    with witnessed(self):
        if self.request.retries < times:
            raise self.retry(countdown=countdown)


@task("retry_later", max_retries=5)
def retry_later(self: Any, seconds: float) -> None:
    """Take a while, and let Celery itself try again once."""
    with witnessed(self):
        if not self.request.retries:
            _sleep(seconds)
            raise self.retry(countdown=0.5)


@task("retry_quietly", max_retries=5)
def retry_quietly(self: Any, how: str, times: int, countdown: float = 0.5) -> None:
    """Let Celery itself try again so many times, without the error that tells of it.

    Then succeed.
    """
    with witnessed(self):
        if self.request.retries < times:
            try:
                self.retry(countdown=countdown, throw=how == "catches")
            except Retry:
                tell(self, "caught")
            if how == "raises":
                raise ValueError("no luck today")


@task("retry_aside", max_retries=5)
def retry_aside(self: Any, times: int, countdown: float = 0.5) -> None:
    """Let a thread of its own send Celery's retry so many times; then succeed."""
    with witnessed(self):
        retries = self.request.retries
        if retries < times:
            again = self.signature_from_request(self.request, countdown=countdown, retries=retries + 1)
            thread = threading.Thread(target=again.apply_async)
            thread.start()
            thread.join()


@task("retry_in_vain", max_retries=1)
def retry_in_vain(self: Any) -> None:
    """Let Celery itself try again once, and fail."""
    with witnessed(self):
        raise self.retry(exc=ValueError("no luck today"), countdown=0.2)


@task(
    "autoretry",
    autoretry_for=(ValueError,),
    max_retries=3,
    retry_backoff=False,
    default_retry_delay=0.3,
)
def autoretry(self: Any, times: int) -> None:
    """Fail so many times, and let Celery try again by itself."""
    with witnessed(self):
        if self.request.retries < times:
            raise ValueError("no luck today")


@task("ignore")
def ignore(self: Any) -> NoReturn:
    """Ask for no result."""
    with witnessed(self):
        raise Ignore


@task("reject")
def reject(self: Any, requeue: bool = False) -> NoReturn:
    """Refuse the message. Celery takes this only from tasks that acknowledge late."""
    with witnessed(self):
        raise Reject("not for me", requeue=requeue)


@task("replace")
def replace(self: Any) -> Any:
    """Let another task do the work."""
    with witnessed(self):
        raise self.replace(note.si("replaced"))


@task("unstorable")
def unstorable(self: Any) -> object:
    """Return what no serializer takes."""
    with witnessed(self):
        return object()


@task("die")
def die(self: Any) -> None:
    """Be killed."""
    with witnessed(self):
        os.kill(os.getpid(), signal.SIGKILL)


@task("die_after")
def die_after(self: Any) -> None:
    """Succeed, and be killed before anybody hears of it."""
    with witnessed(self):
        pass


def _on_task_postrun(sender: Any = None, **_: Any) -> None:
    if sender.name == "work.die_after":
        os.kill(os.getpid(), signal.SIGKILL)


task_postrun.connect(_on_task_postrun)


@task("out_of_memory")
def out_of_memory(self: Any) -> NoReturn:
    """End as where no memory is left."""
    with witnessed(self):
        raise MemoryError("none left")


@task("leave")
def leave(self: Any) -> NoReturn:
    """End the process in order, where it is a child's."""
    with witnessed(self):
        raise SystemExit(3)


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(STEP)


def _look(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run = current_run()
        assert run is not None
        run.check()
        time.sleep(STEP)


def _is_refused(run: Any) -> bool:
    try:
        run.check()
    except (LeaseLost, RunCancelled):
        return True
    return False
