"""A long `beat_schedule`: its first import into the table, and a restart that changes nothing."""

import tempfile
from pathlib import Path

from benchmarks.one_beat import Cost, Wish, answer, start
from benchmarks.places import available_places

ENTRIES = 5_000


def main() -> None:
    """Print the times for the databases that are there, and for stock beat."""
    print(f"\nA beat_schedule of {ENTRIES:,} entries, to the end of the first tick. Targets: < 5 s, < 1 s")
    print(f"{'beat':12} {'first start s':>14} {'restart s':>10} {'from exec s':>12} {'MB':>6}")
    for name, make in available_places().items():
        with make() as place:
            _print_one(name, Wish(place.url, ENTRIES))
            assert place.rows("SELECT count(*) FROM Jobs WHERE JobName LIKE 'entry-%'") == [(ENTRIES,)]
    with tempfile.TemporaryDirectory(prefix="sqlbeat-bench-") as folder:
        _print_one("stock beat", Wish(None, ENTRIES, str(Path(folder) / "schedule")))


def _print_one(name: str, wish: Wish) -> None:
    first, again = _cost(wish), _cost(wish)
    print(
        f"{name:12} {first.first_tick:>14.2f} {again.first_tick:>10.2f} {again.from_exec:>12.2f}"
        f" {again.megabytes:>6.1f}",
        flush=True,
    )


def _cost(wish: Wish) -> Cost:
    return answer(start(wish))
