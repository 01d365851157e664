"""Measures everything and prints it as tables."""

import os
import platform
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks import claim_one, cycle
from benchmarks.places import Place, postgresql_answers, postgresql_place, sqlite_place

Maker = Callable[[], AbstractContextManager[Place]]


def main() -> None:
    """Run all benchmarks."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"SQLite {sqlite3.sqlite_version} in WAL mode, synchronous = FULL; PostgreSQL with synchronous_commit = on")
    places: dict[str, Maker] = {"SQLite": sqlite_place}
    if postgresql_answers():
        places["PostgreSQL"] = postgresql_place

    print(
        f"\nFull cycles a second: claim, mark published, start, success; {cycle.JOBS} jobs in batches of {cycle.BATCH}"
    )
    print(f"{'database':12} {'store':>10} {'bare':>10} {'store/bare':>11}")
    for name, make in places.items():
        with make() as place, make() as twin:
            rates = cycle.measure(place, twin)
        print(f"{name:12} {rates.store:>10,.0f} {rates.bare:>10,.0f} {rates.ratio:>11.2f}")

    print("\nOne due job among many: time of its claim, and memory of the process")
    print(f"{'database':12} {'jobs':>10} {'us':>8} {'MB':>8} {'time':>8} {'memory':>8}")
    for name, make in places.items():
        with make() as few, make() as many:
            least, most = claim_one.measure(few, many)
        print(f"{name:12} {claim_one.FEW:>10,} {least.microseconds:>8.0f} {least.megabytes:>8.1f}")
        print(
            f"{name:12} {claim_one.MANY:>10,} {most.microseconds:>8.0f} {most.megabytes:>8.1f}"
            f" {most.microseconds / least.microseconds:>8.2f} {most.megabytes / least.megabytes:>8.2f}"
        )


if __name__ == "__main__":
    main()
