"""Virtual time: whose turn it is. Processes are greenlets, which wait without holding anybody up.

Nothing here knows what a beat or a worker is. All that happens, happens in the order of its instant
and of its number.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

_MOST_AT_ONCE = 10_000


class Killed(BaseException):
    """Thrown into everything that a process does when it dies; no code of its own may catch it."""


class BusyLoop(Exception):
    """Something happens over and over, and no time passes."""


class Event:
    """Something that will happen, unless it is cancelled.

    What a process does happens only while it lives and goes on.
    """

    __slots__ = ("action", "process")

    def __init__(self, action: Callable[[], Any], process: "Process | None" = None) -> None:
        self.action: Callable[[], Any] | None = action
        self.process = process


class Hub:
    """The order of all events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._numbers = itertools.count()
        self.greenlet = getcurrent()
        self._at_once = 0
        self._until = 0.0
        self._wants_more: Callable[[], bool] = lambda: False

    def at(self, when: float, action: Callable[[], Any], process: "Process | None" = None) -> Event:
        """Let something happen at an instant."""
        event = Event(action, process)
        heapq.heappush(self._heap, (when, next(self._numbers), event))
        return event

    def after(self, seconds: float, action: Callable[[], Any]) -> Event:
        """Let something happen after a while."""
        return self.at(self.now + seconds, action)

    def run(self, until: float, wants_more: Callable[[], bool]) -> None:
        """Let everything happen that is to happen until then."""
        self._until, self._wants_more = until, wants_more
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until and wants_more():
            when, _, event = pop(heap)
            action, process = event.action, event.process
            if action is None:
                continue
            self._count(when)
            if process is None:
                action()
            elif process.alive:
                if when < process.stopped_until:
                    heapq.heappush(heap, (process.stopped_until, next(self._numbers), event))
                else:
                    action()
        if wants_more():
            self.now = max(self.now, until)

    def passes(self, seconds: float) -> bool:
        """Let so much time pass at once, if nobody else has a turn meanwhile."""
        when, heap = self.now + seconds, self._heap
        if when > self._until or (heap and heap[0][0] <= when) or not self._wants_more():
            return False
        self._count(when)
        return True

    def _count(self, when: float) -> None:
        if when > self.now:
            self.now, self._at_once = when, 0
            return
        self._at_once += 1
        if self._at_once > _MOST_AT_ONCE:
            raise BusyLoop(f"{_MOST_AT_ONCE} events at {self.now}")


class Process:
    """A process of the operating system.

    It can wait, be stopped for a while, and die at any moment.
    """

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.alive = True
        self.stopped_until = 0.0
        self.last_frozen = (-1.0, -1.0)
        self._tasks: list[greenlet] = []
        self._waits: dict[greenlet, Event] = {}

    def clock(self) -> float:
        """Return the monotonic clock of its host."""
        return self.hub.now

    def start(self, work: Callable[[], Any]) -> greenlet:
        """Begin a thread of this process."""

        def run() -> None:
            try:
                work()
            except Killed:
                pass
            finally:
                self._tasks.remove(task)

        task = greenlet(run, self.hub.greenlet)
        self._tasks.append(task)
        self.later(0.0, task.switch)
        return task

    def later(self, seconds: float, action: Callable[[], Any]) -> Event:
        """Let this process do something after a while, if it lives then and goes on."""
        return self.hub.at(self.hub.now + seconds, action, self)

    def sleep(self, seconds: float) -> None:
        """Wait, within a thread of this process."""
        hub = self.hub
        if self.stopped_until <= hub.now + seconds and self.alive and hub.passes(seconds):
            return
        task = getcurrent()
        self._waits[task] = self.later(seconds, task.switch)
        hub.greenlet.switch()
        del self._waits[task]
        if not self.alive:
            raise Killed

    def wake(self, task: greenlet) -> None:
        """End the present wait of a thread."""
        event = self._waits.get(task)
        if event is not None and event.action is not None:
            action, event.action = event.action, None
            self._waits[task] = self.later(0.0, action)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self.stopped_until = max(self.stopped_until, self.hub.now + seconds)
        self.last_frozen = (self.hub.now, self.stopped_until)

    def kill(self) -> None:
        """SIGKILL. From one of its own threads this raises."""
        if not self.alive:
            return
        self.alive = False
        self.hub.after(0.0, self._bury)
        if getcurrent() in self._tasks:
            raise Killed

    def forget(self) -> None:
        """End every thread of a world that is over: what waits in one is never collected."""
        self.alive = False
        self._bury()

    def _bury(self) -> None:
        for task in list(self._tasks):
            if task.gr_frame is None:  # it never began
                self._tasks.remove(task)
            else:
                task.throw(Killed)
