"""`make chaos MINUTES=60`: a long storm; prints what it did, and which promises were broken."""

import argparse
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos import databases
from tests.chaos.weather import BROKERS, run


def main() -> int:
    """Run once; the exit code is 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--database", choices=databases.NAMES, default="postgresql")
    parser.add_argument("--broker", choices=sorted(BROKERS), default="redis")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended on the way out
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="sqlbeat_chaos_"))
    print(
        f"seed {seed}; {given.minutes:g} minutes on {given.database} and {given.broker}; logs in {folder}", flush=True
    )
    report = run(60 * given.minutes, given.database, given.broker, seed, folder, lambda text: print(text, flush=True))
    print(
        f"\n{sum(report.faults.values())} faults: "
        + ", ".join(f"{count} x {name}" for name, count in report.faults.most_common())
    )
    print(f"{report.bodies} bodies; " + ", ".join(f"{count} {state}" for state, count in report.runs.most_common()))
    print(", ".join(f"{count} {name}" for name, count in report.cases.items()))
    for text in report.broken:
        print(text)
    print(f"seed {seed}: {len(report.broken)} broken promises")
    return bool(report.broken)


if __name__ == "__main__":
    sys.exit(main())
