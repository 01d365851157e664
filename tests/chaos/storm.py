"""A storm: processes killed and frozen, servers restarted, connections cut or deaf, a disk full; all by one seed."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.chaos.history import Freeze, Kill
from tests.process.beats import Beat
from tests.process.brokers import Wire
from tests.process.private import PrivateServer

LONGEST_FREEZE = 12.0  # seconds; two leases
LONGEST_OUTAGE = 9.0  # one and a half
CALM = (0.5, 4.0)  # seconds between two faults


class Member(NamedTuple):
    """One process of the shop, and how to start another in its place."""

    kind: str
    start: Callable[[], Beat]
    wires: Mapping[str, Wire]


class Storm:
    """Does harm, and makes it good again."""

    def __init__(
        self, seed: int, members: list[Member], servers: Mapping[str, PrivateServer], disk: Path | None = None
    ) -> None:
        self._random = random.Random(seed)
        self._members = members
        self._running = [member.start() for member in members]
        self._servers, self._disk = servers, disk
        self._repairs: list[tuple[float, Callable[[], None]]] = []
        self.freezes: list[Freeze] = []
        self.kills: list[Kill] = []
        self.strangers: list[str] = []  # processes that ended without being told to, or did not when they were
        self._told: set[int] = set()
        self.faults: Counter[str] = Counter()

    def rage(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Go on for so long, then make everything good."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name, fault = self._random.choice(self._choices())
            tell(f"{end - time.monotonic():6.1f} s left: {name}")
            self.faults[name] += 1
            fault()
            pause = time.monotonic() + self._random.uniform(*CALM)
            while time.monotonic() < pause:
                self._repair(time.monotonic())
                time.sleep(0.05)
        self.calm()

    def calm(self) -> None:
        """Make everything good: nothing stands still, every server answers, every process runs."""
        self._repair(float("inf"))
        for number in range(len(self._members)):
            self._revive(number)

    def kill_one(self, kind: str, tell: Callable[[str], None]) -> None:
        """Kill one process for others to carry on; nothing else goes wrong meanwhile."""
        number = self._random.choice([at for at, member in enumerate(self._members) if member.kind == kind])
        process = self._running[number]
        tell(f"all is well: {kind} killed, and timed")
        self.faults[f"{kind} killed, and timed"] += 1
        self._told.add(process.process.pid)
        process.kill()
        self.kills.append(Kill(process.process.pid, kind == "beat", time.monotonic()))

    def stop(self) -> None:
        """End all processes in order; one that does not end is told of, and the others are judged all the same."""
        for process in self._running:
            process.process.terminate()
        for process in self._running:
            try:
                process.wait(60)
            except AssertionError as error:
                self.strangers.append(str(error)[-6000:])

    def kill(self) -> None:
        """End all processes by force."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.signal(signal.SIGKILL)
            process.process.wait(60)

    def _choices(self) -> list[tuple[str, Callable[[], None]]]:
        number = self._random.randrange(len(self._members))
        member = self._members[number]
        kind = member.kind
        found = [
            (f"{kind} killed", lambda: self._kill(number)),
            (f"{kind} frozen", lambda: self._freeze(number, whole=True)),
            (f"{kind} told to stop", lambda: self._tell_to_stop(number)),
        ]
        if kind == "worker":
            found += [
                ("worker's main process frozen", lambda: self._freeze(number, whole=False)),
                ("worker's child killed", lambda: self._kill_child(number)),
            ]
        for name, wire in member.wires.items():
            found += [
                (f"{kind} cut from the {name}", lambda wire=wire: self._cut(wire)),  # type: ignore[misc]
                (f"{kind} hears nothing of the {name}", lambda wire=wire: self._swallow(wire)),  # type: ignore[misc]
            ]
        name = self._random.choice([*self._servers, *(["disk"] if self._disk else [])] or [""])
        if name == "disk":
            found.append(("disk full", self._fill))
        elif name:
            found += [
                (f"{name} restarted", lambda: self._servers[name].restart(signal.SIGTERM)),
                (f"{name} killed", lambda: self._servers[name].restart(signal.SIGKILL, self._random.uniform(0, 3))),
            ]
        return found

    def _later(self, seconds: float, repair: Callable[[], None]) -> None:
        self._repairs.append((time.monotonic() + seconds, repair))

    def _repair(self, now: float) -> None:
        due = [each for each in self._repairs if each[0] <= now]
        for each in due:
            self._repairs.remove(each)
            each[1]()

    def _revive(self, number: int) -> None:
        process = self._running[number]
        if process.process.poll() is None:
            return
        if process.process.pid not in self._told:
            kind, code, said = self._members[number].kind, process.process.returncode, process.log
            raised_in = said[said.rfind('File "') :].partition("\n")[0]
            if kind == "beat" or "/celery_sqlbeat/" in raised_in:
                self.strangers.append(f"{kind}, exit code {code}: {said[-3000:]}")
            else:  # kombu's Redis transport may end a worker that loses its connection; the promises hold all the same
                self.faults[f"{kind} ended by Celery itself"] += 1
        self._running[number] = self._members[number].start()

    def _kill(self, number: int) -> None:
        self._told.add(self._running[number].process.pid)
        if self._running[number].process.poll() is None:
            self._running[number].kill()
        self._later(self._random.uniform(0, 3), lambda: self._revive(number))

    def _tell_to_stop(self, number: int) -> None:
        """A supervisor's way: ask, and start the next one when it has gone, by force after a while."""
        process = self._running[number]
        self._told.add(process.process.pid)
        process.process.terminate()

        def replace() -> None:
            if process.process.poll() is None:
                process.signal(signal.SIGCONT)
                process.kill()
            self._revive(number)

        self._later(self._random.uniform(2, 8), replace)

    def _freeze(self, number: int, whole: bool) -> None:
        process, since = self._running[number], time.monotonic()

        def signal_it(how: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                process.signal(how) if whole else process.process.send_signal(how)

        def go_on() -> None:
            signal_it(signal.SIGCONT)
            # What stood still learns only after a moment that it did.
            self.freezes.append(Freeze(process.process.pid, since, time.monotonic() + LONGEST_FREEZE))

        signal_it(signal.SIGSTOP)
        self._later(self._random.uniform(0.5, LONGEST_FREEZE), go_on)

    def _kill_child(self, number: int) -> None:
        try:
            children = psutil.Process(self._running[number].process.pid).children()
        except psutil.NoSuchProcess:
            return
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(children).pid, signal.SIGKILL)

    def _cut(self, wire: Wire) -> None:
        wire.cut()
        self._later(self._random.uniform(0, LONGEST_OUTAGE), wire.mend)

    def _swallow(self, wire: Wire) -> None:
        wire.stop_after = 0

        def mend() -> None:
            wire.cut()
            wire.mend()

        self._later(self._random.uniform(1, LONGEST_OUTAGE), mend)

    def _fill(self) -> None:
        assert self._disk is not None
        filler = self._disk / "filler"
        with contextlib.suppress(OSError), filler.open("ab") as file:
            while True:
                file.write(b"\0" * 65536)
                file.flush()
        self._later(self._random.uniform(1, LONGEST_OUTAGE), lambda: filler.unlink(missing_ok=True))
