"""What is wrong with the beats that live beside each other in a namespace, with the line that separates them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from celery_sqlbeat.beat.entries import shown_release
from celery_sqlbeat.model import LivingRelease

_MOST_NAMES = 10  # of entries in one sentence


class Problem(NamedTuple):
    """What both sides are told: beats in their logs, and whoever checks."""

    about: tuple[str, str]
    """The app and the release that are too many here."""
    says: str
    remedy: str


def problems(
    namespace: str, owner: str, release: str, entries: Mapping[str, str], living: Sequence[LivingRelease]
) -> list[Problem]:
    """What is wrong between this release of an app and all others that have a living beat."""
    return [*other_apps(namespace, owner, living), *other_releases(namespace, owner, release, entries, living)]


def other_apps(namespace: str, owner: str, living: Sequence[LivingRelease]) -> Iterator[Problem]:
    """Other apps in the namespace of this one."""
    for other, beat in {one.owner: one.beat for one in living if one.owner != owner}.items():
        moves = owner if namespace != owner else other
        yield Problem(
            (other, ""),
            f"the apps {owner} and {other} ({beat}) share the namespace {namespace!r} of one database: jobs of one "
            "name collide, and on a queue that both consume each gets the other's tasks",
            f'set in {moves}, for its beats and workers: sqlbeat_namespace = "{moves}" '
            f'and, on the same broker, task_default_queue = "{moves}"',
        )


def other_releases(
    namespace: str, owner: str, release: str, entries: Mapping[str, str], living: Sequence[LivingRelease]
) -> Iterator[Problem]:
    """Other releases of this app that have another schedule."""
    for one in living:
        if one.owner != owner or one.release == release or one.entries is None:
            continue
        differences = [
            ("only there", sorted(one.entries.keys() - entries.keys())),
            ("only here", sorted(entries.keys() - one.entries.keys())),
            (
                "otherwise defined",
                _differing(entries, one.entries),
            ),
        ]
        told = "; ".join(f"{what}: {_listed(names)}" for what, names in differences if names)
        if told:
            yield Problem(
                (owner, one.release),
                f"release {shown_release(one.release)} of {owner} ({one.beat}) is alive beside release "
                f"{shown_release(release)} with another beat_schedule: {told}. An entry stays while a living beat "
                "has it, as the newest of those defines it",
                "where this is a deployment, it ends with the older beats; beats that are to keep different schedules "
                f'need a namespace each: sqlbeat_namespace = "{namespace}-2" for the beats and workers of one of them',
            )


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in one.keys() & other.keys() if one[name] != other[name])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
