"""What a beat costs, section by section, with plain Celery as the yardstick."""

from collections.abc import Callable

from benchmarks import cleanup, code, crowd, idle, lateness, walk

SECTIONS: dict[str, Callable[[], None]] = {
    "walk": walk.main,
    "idle": idle.main,
    "lateness": lateness.main,
    "code": code.main,
}
# Only when they are named.
EXTRAS: dict[str, Callable[[], None]] = {
    "crowd": crowd.main,
    "million": idle.million,
    "cleanup": cleanup.main,
    "cleanup-three": cleanup.three,
}
