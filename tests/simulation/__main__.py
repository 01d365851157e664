"""`make simulate SEED=... STEPS=...`.

Lives through world after world, and tells the story of the first that fails.
"""

import argparse
import os
import sys
import time
from collections import Counter

from tests.simulation import campaign


def main() -> int:
    """Simulate; returns the exit code."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the first world; any by default")
    parser.add_argument("--steps", type=int, default=500_000, help="so many in all")
    parser.add_argument("--only", default=None, help="the numbers of the faults that happen, for a shortened story")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    seed = chosen.seed if chosen.seed is not None else int.from_bytes(os.urandom(3), "big")
    began, steps, count, counts = time.monotonic(), 0, 0, Counter[str]()
    print(f"seed {seed}", flush=True)
    if chosen.only is not None:
        only = [int(number) for number in chosen.only.split(",") if number.isdigit()]
        lived = iter([campaign.live(seed, chosen.steps, only)])
    else:
        lived = campaign.worlds(seed, chosen.steps, chosen.processes)
    for one in lived:
        steps, count, counts = steps + one.steps, count + 1, counts + one.counts
        if one.found is not None:
            print(f"seed {one.found.seed}: {one.found.invariant}: {one.found.text}")
            print(f"shortening; as it was: make simulate SEED={one.found.seed} STEPS={one.found.steps}", flush=True)
            found = one.found if chosen.only is not None else campaign.shortened(one.found)
            print("\n".join(campaign.story(found)))
            return 1
    seconds = time.monotonic() - began
    what = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    print(f"{count} worlds, {steps} steps in {seconds:.1f} s ({60 * steps / seconds:,.0f} a minute): every check held")
    print(what)
    return 0


if __name__ == "__main__":
    sys.exit(main())
