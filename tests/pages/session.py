"""A shop in a folder, in which the commands and snippets of one page are run in their order."""

import contextlib
import os
import runpy
import shlex
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from celery_sqlbeat.config.settings import read_settings
from tests.pages.blocks import ROOT, Block, commands_of
from tests.support.beats import wait_for

PATIENCE = 90.0  # seconds for one command on a busy machine
APP = """\
from celery import Celery

from celery_sqlbeat.brokers import folder_url

app = Celery("app", broker=folder_url("messages"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    result_expires=None,
    beat_schedule={"often": {"task": "app.often", "schedule": 1.0}},
)


@app.task(name="app.often")
def often(): ...


@app.task(name="app.report")
def report(*args, **kwargs): ...


@app.task(name="app.broken")
def broken():
    raise ValueError("as the page has it")
"""
_LONG = {"worker": "ready.", "beat": "beat: Starting..."}


class Session:
    """The folder, and the beats and workers that the page has started so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        (folder / "app.py").write_text(APP)

    def console(self, block: Block) -> None:
        """Run the commands of a block.

        Each must succeed, and a beat or worker must come up and stay.
        """
        for command in commands_of(block):
            words = shlex.split(command)
            assert words[0] == "celery", f"{command!r}: say why this is not run, or teach {__file__} to run it"
            self.still_running()
            kind = next((word for word in words if word in _LONG), None) if "sqlbeat" not in words[:4] else None
            if kind is not None:
                self._start(kind, words)
            else:
                self._run(command, words)

    def python(self, block: Block) -> None:
        """Run a snippet as a program.

        One that begins with a file's name in a comment becomes that file as well.
        """
        first = block.text.splitlines()[0]
        name = first.removeprefix("# ").partition(":")[0]
        target = self.folder / (name if first.startswith("# ") and name.endswith(".py") else f"snippet_{block.line}.py")
        target.write_text(block.text)
        self._run(block.text, [sys.executable, target.name])
        shown = runpy.run_path(str(target)) if block.text.startswith("sqlbeat_") else {}
        read_settings({name: value for name, value in shown.items() if name.startswith("sqlbeat_")}, {})

    def sql(self, block: Block) -> None:
        """Run statements on the database of the page."""
        with contextlib.closing(sqlite3.connect(self.folder / "sqlbeat.db")) as database:
            database.executescript(block.text)

    def _run(self, what: str, words: list[str]) -> None:
        words, _, output = _redirected(words)
        done = subprocess.run(
            _command(words),
            cwd=self.folder,
            env=self._environ(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, f"{what}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        if output:
            (self.folder / output).write_text(done.stdout)

    def _start(self, kind: str, words: list[str]) -> None:
        log = self.folder / f"{kind}-{len(self._running)}.log"
        extra = [
            "--loglevel",
            "INFO",
            *(["--pidfile="] if kind == "beat" else ["--hostname", f"w{len(self._running)}@page"]),
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_command(words), *extra],
                cwd=self.folder,
                env=self._environ(),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._running.append((shlex.join(words), process, log))
        wait_for(lambda: _LONG[kind] in log.read_text() or process.poll() is not None, PATIENCE, self.logs)
        self.still_running()

    def still_running(self) -> None:
        """Be sure that no beat or worker of the page has fallen."""
        for command, process, _ in self._running:
            assert process.poll() is None, f"{command} has ended\n{self.logs()}"

    def logs(self) -> str:
        """Return what beats and workers have said."""
        return "\n".join(f"--- {command}\n{log.read_text()[-3000:]}" for command, _, log in self._running)

    def close(self) -> None:
        """End everybody."""
        for _, process, _ in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _environ(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SQLBEAT_", "CELERY_"))}
        return {**clean, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}", "COLUMNS": "120"}


def _command(words: list[str]) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", *words] if words[0] == "celery" else words


def _redirected(words: list[str]) -> tuple[list[str], str, str]:
    if len(words) > 2 and words[-2] == ">":
        return words[:-2], ">", words[-1]
    return words, "", ""
