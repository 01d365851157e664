"""A storm: processes killed and frozen, servers restarted, connections cut or deaf, a disk full.

All by one seed.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.chaos.guests import Guest, Later
from tests.chaos.history import Doubt, Freeze, Kill
from tests.support.beats import Beat
from tests.support.brokers import Wire
from tests.support.private_servers import PrivateServer

LONGEST_FREEZE = 12.0  # seconds; two leases
LONGEST_OUTAGE = 9.0  # one and a half
CALM = (0.5, 4.0)  # seconds between two faults
_BROKERS = {"redis", "rabbitmq"}


Mischief = Callable[[random.Random, Later], bool]
"""Something else to do; False where it could not be done now."""


class Member(NamedTuple):
    """One process of the shop, and how to start another in its place."""

    kind: str
    start: Callable[[], Beat]
    wires: Mapping[str, Wire]
    shares: bool = False
    """Whether a plain worker consumes a queue of its, too."""


class Storm:
    """Does harm, and makes it good again."""

    def __init__(
        self,
        seed: int,
        members: list[Member],
        servers: Mapping[str, PrivateServer],
        disk: Path | None = None,
        guest: Guest | None = None,
        mischief: Mapping[str, Mischief] | None = None,
    ) -> None:
        """`guest` comes and goes; `mischief` is done as well, by its name."""
        self._random = random.Random(seed)
        self._members = members
        self._running = [member.start() for member in members]
        self._servers, self._disk = servers, disk
        self.guest, self._mischief = guest, mischief or {}
        self._away: set[str] = set()
        self._repairs: list[tuple[float, Callable[[], None]]] = []
        self.freezes: list[Freeze] = []
        self.kills: list[Kill] = []
        self.child_kills: list[Kill] = []
        self.doubts: list[Doubt] = []
        self.strangers: list[str] = []  # processes that ended without being told to, or did not when they were
        self._told: set[int] = set()
        self.faults: Counter[str] = Counter()

    def rage(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Go on for so long, then make everything good."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name, fault = self._random.choice(self._choices())
            if fault() is False:
                continue
            tell(f"{end - time.monotonic():6.1f} s left: {name}")
            self.faults[name] += 1
            self.pass_time(self._random.uniform(*CALM))
        self.calm()

    def calm(self) -> None:
        """Make everything good.

        Nothing stands still, every server answers, every process runs, no guest is there.
        """
        self._repair(float("inf"))
        if self.guest is not None:
            self.guest.goes()
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

    def join(self, member: Member) -> None:
        """Start one more process, which belongs to the others from now on."""
        self._members.append(member)
        self._running.append(member.start())

    def restart(self, numbers: Iterable[int]) -> None:
        """Let some members end in order, and start others in their place."""
        for number in numbers:
            self._tell_to_stop(number)

    @property
    def shared(self) -> list[int]:
        """The members that share a queue with the guest."""
        return [number for number, member in enumerate(self._members) if member.shares]

    @property
    def is_manned(self) -> bool:
        """Whether each worker takes messages: a busy machine starts one in half a minute."""
        workers = [self._running[number] for number, each in enumerate(self._members) if each.kind.endswith("worker")]
        return all(" ready." in worker.log for worker in workers)

    def pass_time(self, seconds: float) -> None:
        """Do nothing, but for the repairs that are due."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._repair(time.monotonic())
            time.sleep(0.05)

    def stop(self) -> None:
        """End all processes in order.

        One that does not end is told of, and the others are judged all the same.
        """
        for process in self._running:
            process.process.terminate()
        for process in self._running:
            try:
                process.wait(60)
            except AssertionError as error:
                self.strangers.append(str(error)[-6000:])

    def kill(self) -> None:
        """End all processes by force."""
        if self.guest is not None:
            self.guest.goes()
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.signal(signal.SIGKILL)
            process.process.wait(60)

    def _choices(self) -> list[tuple[str, Callable[[], object]]]:
        number = self._random.randrange(len(self._members))
        member = self._members[number]
        kind = member.kind
        found: list[tuple[str, Callable[[], object]]] = [
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
                (f"{kind} cut from the {name}", partial(self._cut, wire, member.shares and name == "broker")),
                (
                    f"{kind} hears nothing of the {name}",
                    partial(self._swallow, wire, member.shares and name == "broker"),
                ),
            ]
        if member.shares:
            found.append((f"{kind} away for a while", lambda: self._tell_to_stop(number, 8, 20)))
        found += [(name, partial(each, self._random, self._later)) for name, each in self._mischief.items()]
        found += self.guest.choices(self._random, self._later) if self.guest else []
        name = self._random.choice([*self._servers, *(["disk"] if self._disk else [])] or [""])
        if name == "disk":
            found.append(("disk full", self._fill))
        elif name == "results":  # whoever needs it waits for it, and nobody else does
            found.append((f"{name} killed, and away", lambda: self._take_away(name)))
        elif name:
            found += [
                (f"{name} restarted", lambda: self._restart(name, signal.SIGTERM, 0)),
                (f"{name} killed", lambda: self._restart(name, signal.SIGKILL, self._random.uniform(0, 3))),
            ]
        return found

    def _restart(self, name: str, how: int, pause: float) -> None:
        since = time.monotonic()
        self._servers[name].restart(how, pause)
        if name in _BROKERS:
            self.doubts.append(Doubt(since, time.monotonic() + LONGEST_OUTAGE))

    def _take_away(self, name: str) -> bool:
        if name in self._away:
            return False
        self._away.add(name)
        self._servers[name].stop(signal.SIGKILL)

        def bring_back() -> None:
            self._servers[name].start()
            self._away.discard(name)

        self._later(self._random.uniform(1, LONGEST_OUTAGE), bring_back)
        return True

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

    def _tell_to_stop(self, number: int, least: float = 2, most: float = 8) -> None:
        """Ask a process to stop, as a supervisor does, and kill it after a while."""
        process = self._running[number]
        self._told.add(process.process.pid)
        process.process.terminate()

        def replace() -> None:
            if process.process.poll() is None:
                process.signal(signal.SIGCONT)
                process.kill()
            self._revive(number)

        self._later(self._random.uniform(least, most), replace)

    def _freeze(self, number: int, whole: bool) -> None:
        process, since = self._running[number], time.monotonic()

        def signal_it(how: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                process.signal(how) if whole else process.process.send_signal(how)

        def go_on() -> None:
            went_on = time.monotonic()
            signal_it(signal.SIGCONT)
            # What stood still learns only after a moment that it did.
            until = time.monotonic() + LONGEST_FREEZE
            self.freezes.append(Freeze(process.process.pid, since, until, went_on, whole))

        signal_it(signal.SIGSTOP)
        self._later(self._random.uniform(0.5, LONGEST_FREEZE), go_on)

    def _kill_child(self, number: int) -> None:
        try:
            main = self._running[number].process.pid
            children = psutil.Process(main).children()
        except psutil.NoSuchProcess:
            return
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(children).pid, signal.SIGKILL)
                self.child_kills.append(Kill(main, False, time.monotonic()))

    def _doubt(self) -> None:
        """Note that consumers of a shared queue may lose their connection without knowing it."""
        self.doubts.append(Doubt(time.monotonic(), time.monotonic() + 2 * LONGEST_OUTAGE))

    def _cut(self, wire: Wire, is_doubtful: bool) -> None:
        if is_doubtful:
            self._doubt()
        wire.cut()
        self._later(self._random.uniform(0, LONGEST_OUTAGE), wire.mend)

    def _swallow(self, wire: Wire, is_doubtful: bool) -> None:
        if is_doubtful:
            self._doubt()
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
