"""What happens in the demonstration, and when: decided from what can be seen, as machines differ in speed.

Pure: it kills nobody itself.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.demo.scene import Hold, Scene
from celery_sqlbeat.model import RunRecord

BEATS = ("beat 1", "beat 2", "beat 3")
WORKERS = ("worker 1", "worker 2")
LONG_JOB = "build-report"
CRONTAB_JOB = "every-minute"
_AT_WORK_SECONDS = 2.0  # before somebody is killed


class Step(NamedTuple):
    """What is said, and what is to be done with it."""

    text: str
    kill: str | None = None
    pause: str | None = None


class Story:
    """Each chapter happens once, as soon as what it waits for can be seen."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._chapters: dict[str, Callable[[Scene, float], Iterator[Step]]] = {
            "beats and workers at work": self._at_work,
            "a dead letter": self._dead_letter,
            "a beat killed": self._kill_beat,
            "another beat carrying on": self._carry_on,
            "a run that outlives its lease": self._outlive,
            "a worker killed": self._kill_worker,
            "the take-over of its run": self._take_over,
            "the end of that run": self._complete,
            "the crontab": self._crontab,
        }
        self._at_work_at = 0.0
        self._killed_beat: tuple[str, datetime] | None = None
        self._lost: tuple[Hold, datetime] | None = None

    @property
    def missing(self) -> list[str]:
        """What has not happened yet."""
        return list(self._chapters)

    def tell(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        """Yield what happens now."""
        for name, chapter in list(self._chapters.items()):
            if self._waits_for(name):
                continue
            for step in chapter(scene, elapsed):
                self._chapters.pop(name, None)
                yield step

    def _waits_for(self, name: str) -> bool:
        before = {
            "a beat killed": "beats and workers at work",
            "another beat carrying on": "a beat killed",
            "a worker killed": "another beat carrying on",
            "the take-over of its run": "a worker killed",
            "the end of that run": "the take-over of its run",
        }
        return before.get(name) in self._chapters

    def _at_work(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        there = {node.name for node in scene.nodes}
        if there >= {*BEATS, *WORKERS} and any(job.done for job in scene.jobs):
            self._at_work_at = elapsed
            yield Step(f"{len(BEATS)} beats and {len(WORKERS)} workers are at work on {len(scene.jobs)} jobs")

    def _kill_beat(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        latest = _latest_claim(scene)
        if latest is not None and elapsed >= self._at_work_at + _AT_WORK_SECONDS:
            beat = scene.called(latest.claimed_by)
            if beat in BEATS:
                self._killed_beat = beat, scene.now
                yield Step(f"kill -9 {beat}, which has just claimed {latest.job_name}", kill=beat)

    def _carry_on(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        assert self._killed_beat is not None  # noqa: S101 - the chapter before
        killed, at = self._killed_beat
        latest = _latest_claim(scene)
        if latest is None or latest.claimed_at is None or latest.claimed_at <= at:
            return
        beat = scene.called(latest.claimed_by)
        if beat != killed:
            seconds = (latest.claimed_at - at).total_seconds()
            yield Step(f"{beat} carries on: it claimed {latest.job_name} {seconds:.1f} s after the kill")

    def _outlive(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        hold = scene.hold_of(LONG_JOB)
        if hold is not None and hold.running_seconds > self._lease_seconds:
            yield Step(
                f"{LONG_JOB} has run for {hold.running_seconds:.1f} s on {hold.holder}, longer than its lease of "
                f"{self._lease_seconds:g} s: heartbeats extend it"
            )

    def _kill_worker(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        hold = scene.hold_of(LONG_JOB)
        # Late enough that the next heartbeat is not just being written, early enough to be in the middle.
        if hold is not None and hold.holder in WORKERS and hold.running_seconds > 1.0 and hold.lease_left > 0:
            if "a run that outlives its lease" in self._chapters:
                return
            self._lost = hold, scene.now
            yield Step(
                f"kill -9 {hold.holder} in the middle of {LONG_JOB}; its lease has {hold.lease_left:.1f} s left",
                kill=hold.holder,
            )

    def _take_over(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        next_one = self._next_attempt(scene)
        assert self._lost is not None  # noqa: S101 - the chapter before
        lost, at = self._lost
        if next_one is not None and next_one.started_at is not None:
            seconds = (next_one.started_at - at).total_seconds()
            yield Step(
                f"{scene.called(next_one.started_by)} takes {LONG_JOB} over from {lost.holder}, "
                f"attempt {next_one.attempt}, {seconds:.1f} s after the kill: the lease had to end first"
            )

    def _complete(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        next_one = self._next_attempt(scene)
        if next_one is not None and next_one.state == "success":
            yield Step(f"{LONG_JOB} is complete; it is paused, as it has been seen enough", pause=LONG_JOB)

    def _next_attempt(self, scene: Scene) -> RunRecord | None:
        """The latest attempt of the slot whose worker was killed, if there is a later one."""
        if self._lost is None:
            return None
        lost = next((run for run in scene.runs if run.run_id == self._lost[0].run_id), None)
        if lost is None:
            return None
        later = [
            run
            for run in scene.runs
            if (run.job_id, run.kind, run.scheduled_for) == (lost.job_id, lost.kind, lost.scheduled_for)
            and run.attempt > lost.attempt
        ]
        return max(later, key=lambda run: run.attempt, default=None)

    def _dead_letter(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        dead = next((run for run in scene.runs if run.state == "dlq"), None)
        if dead is not None:
            error = (dead.error or "no error").splitlines()[-1][:80]
            yield Step(f"{dead.job_name} failed {dead.failures} times and is a dead letter: {error}")

    def _crontab(self, scene: Scene, elapsed: float) -> Iterator[Step]:
        done = next((run for run in scene.runs if run.job_name == CRONTAB_JOB and run.state == "success"), None)
        if done is not None:
            yield Step(f"{CRONTAB_JOB} ran for its slot {done.scheduled_for:%H:%M:%S} UTC: the crontab fires")


def _latest_claim(scene: Scene) -> RunRecord | None:
    claimed = [run for run in scene.runs if run.claimed_at is not None]
    return max(claimed, key=lambda run: (run.claimed_at, run.run_id), default=None)
