"""Whether all is well, for a probe: in the namespace, or with the beat or worker of this machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_sqlbeat.handle.status import Process


def of_the_namespace(
    processes: Sequence[Process], lag_seconds: float, most_lag: float, refused: Sequence[str] = ()
) -> list[str]:
    """What is wrong with the namespace: nobody fires its jobs, they wait, or nobody takes their messages."""
    if not any(each.kind == "beat" and each.state == "alive" for each in processes):
        return ["no beat is alive: start celery -A app beat --scheduler celery_sqlbeat.Scheduler"]
    if lag_seconds > most_lag:
        return [
            f"a job has been due for {lag_seconds:.0f} s, more than {most_lag:g} s: see celery -A app sqlbeat status"
        ]
    return list(refused)


def of_this_machine(processes: Sequence[Process], host: str) -> list[str]:
    """What is wrong here: no beat and no worker of this machine is alive."""
    if any(each.host == host and each.state == "alive" for each in processes):
        return []
    return [f"neither a beat nor a worker on {host} has said lately that it is alive"]


def hanging(processes: Sequence[Process], host: str, runs: Callable[[int], bool]) -> list[str]:
    """What hangs here: it runs, but has not said for too long that it is alive, though the database answers.

    Whoever has not registered yet is only starting, and of those with one process id the newest counts.
    """
    newest: dict[int, Process] = {}
    for each in sorted(processes, key=lambda each: each.started_at):
        if each.host == host:
            newest[each.pid] = each
    return [
        f"{each.id} has been silent for {each.silent_seconds:.0f} s, though the database answers"
        for each in newest.values()
        if each.state == "silent" and runs(each.pid)
    ]
