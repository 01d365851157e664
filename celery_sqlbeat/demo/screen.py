"""How the demonstration looks: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from celery_sqlbeat.demo.scene import JobLine, NodeLine, Scene

_STATUS_SECONDS = 5.0  # between two lines about everybody, where there is no table


class Screen(AbstractContextManager["Screen"], Protocol):
    """What can be said and shown."""

    def say(self, elapsed: float, text: str) -> None:
        """Say what happened."""

    def show(self, scene: Scene, elapsed: float, killed: set[str], waits_for: list[str]) -> None:
        """Show how things stand."""


class Lines(Screen):
    """One line for each event, and now and then one about everybody."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next_status = 0.0

    def __exit__(self, *_: object) -> None:
        """Nothing to restore."""

    def say(self, elapsed: float, text: str) -> None:
        """Write one line."""
        self._write(f"{elapsed:5.1f} s  {text}")

    def show(self, scene: Scene, elapsed: float, killed: set[str], waits_for: list[str]) -> None:
        """Write how things stand, if that was not done lately."""
        if elapsed < self._next_status:
            return
        self._next_status = elapsed + _STATUS_SECONDS
        held = [
            f"{hold.job_name} by {hold.holder} (lease {max(hold.lease_left, 0):.1f} s)"
            for hold in scene.holds()
            if hold.is_running
        ]
        alive = sorted(node.name for node in scene.nodes if node.name not in killed)
        done = sum(job.done for job in scene.jobs)
        self._write(
            f"{elapsed:5.1f} s  - alive: {', '.join(alive) or 'nobody yet'}; done: {done}; "
            f"running: {', '.join(held) or 'nothing'}"
        )


class Tables(Screen):
    """A table of jobs and a line of processes, drawn anew again and again; what happened scrolls up above them."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "Tables":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, elapsed: float, text: str) -> None:
        """Print what happened above the table."""
        self._live.console.print(Text(f"{elapsed:5.1f} s  ") + Text(text, style=_loud(text)))

    def show(self, scene: Scene, elapsed: float, killed: set[str], waits_for: list[str]) -> None:
        """Draw it anew."""
        still = Text(f"{elapsed:.0f} s; still to come: {', '.join(waits_for) or 'the audit'}", style="dim")
        self._live.update(Group(_jobs(scene.jobs), _nodes(scene.nodes, killed), still), refresh=True)


def _jobs(jobs: list[JobLine]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    # Widths that no content changes, so that nothing jumps, and that fit 80 columns.
    for column, width in (("job", 12), ("schedule", 15), ("now", 18), ("held by", 8)):
        table.add_column(column, no_wrap=True, min_width=width)
    for column, width in (("lease", 5), ("next", 6), ("done", 4), ("dead", 4)):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    for job in jobs:
        hold = job.hold
        table.add_row(
            job.name,
            job.schedule,
            Text(job.doing, style=_style(job)),
            hold.holder if hold else "",
            f"{max(hold.lease_left, 0):.1f} s" if hold else "",
            _until(job),
            str(job.done),
            str(job.dead or ""),
        )
    return table


def _until(job: JobLine) -> str:
    if job.is_paused or job.next_seconds is None:
        return ""
    if job.next_seconds < 60:
        return f"{max(job.next_seconds, 0):.1f} s"
    return f"{job.next_seconds / 3600:.1f} h" if job.next_seconds >= 3600 else f"{job.next_seconds / 60:.0f} min"


def _style(job: JobLine) -> str:
    if "attempt" in job.doing or "retry" in job.doing:
        return "yellow"
    return "green" if job.doing == "running" else ""


def _loud(text: str) -> str:
    return "bold red" if text.startswith("kill -9") else ""


def _nodes(nodes: list[NodeLine], killed: set[str]) -> Text:
    alive = [f"{node.name} ({node.heartbeat_seconds:.1f} s)" for node in nodes if node.name not in killed]
    line = Text("heartbeats: ").append(", ".join(alive) or "nobody yet", style="green")
    if killed:
        line.append("   killed: ").append(", ".join(sorted(killed)), style="red")
    return line
