"""The beats and workers of the demonstration: real processes, each with its log, all of them ended with it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_BEGUN = re.compile(r"\[([0-9a-f-]{36})\]: begun on ")


class Actor:
    """One process."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name, self.process, self.log = name, process, log
        self.killed = False

    @property
    def pid(self) -> int:
        """The process id of the beat, or of the worker's main process."""
        return self.process.pid

    @property
    def is_there(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it as an out-of-memory killer does, with no chance to say a word."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def begun(self) -> list[str]:
        """The run ids of the tasks whose bodies its log saw begin."""
        return _BEGUN.findall(self.log.read_text(errors="replace"))

    def last_words(self, lines: int = 5) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Cast:
    """All of them."""

    def __init__(self, folder: Path, app: str, environ: Mapping[str, str]) -> None:
        self._folder, self._app, self._environ = folder, app, environ
        self.actors: list[Actor] = []

    def start_beat(self, name: str) -> None:
        """Start a beat."""
        self._start(name, "beat", "--scheduler", "celery_sqlbeat.Scheduler", "--pidfile=")

    def start_worker(self, name: str) -> None:
        """Start a prefork worker of two processes."""
        # Mingle and gossip only make a worker slower to start; this demonstration has a minute.
        quick = ("--without-mingle", "--without-gossip")
        self._start(name, "worker", "--hostname", f"{name.replace(' ', '-')}@demo", "--concurrency", "2", *quick)

    def _start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "celery", "-A", self._app, *arguments, "--loglevel", "INFO"]
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own Python, no shell
                command,
                cwd=self._folder,
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches this program alone, which then ends them
            )
        self.actors.append(Actor(name, process, log))

    def named(self, name: str) -> Actor:
        """Who has this name."""
        return next(actor for actor in self.actors if actor.name == name)

    def fallen(self) -> Iterator[Actor]:
        """Those that ended without being asked to."""
        return (actor for actor in self.actors if not actor.killed and not actor.is_there)

    def stop(self, kind: str, seconds: float) -> None:
        """Ask all of a kind to end in order; after so many seconds they are killed."""
        asked = [actor for actor in self.actors if actor.name.startswith(kind) and actor.is_there]
        for actor in asked:
            actor.process.terminate()
        _wait(asked, time.monotonic() + seconds)
        self._sweep(asked)

    def close(self) -> None:
        """End whatever is left, children included."""
        self._sweep(self.actors)

    def _sweep(self, actors: Iterable[Actor]) -> None:
        for actor in actors:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(actor.pid, signal.SIGKILL)  # its session: the main process and its children
            actor.process.wait()


def _wait(actors: Iterable[Actor], until: float) -> None:
    for actor in actors:
        with contextlib.suppress(subprocess.TimeoutExpired):
            actor.process.wait(max(until - time.monotonic(), 0))
