"""The command: random cases, or one case."""

import argparse
import sys
import time
from math import inf
from pathlib import Path

from offbeat.testing import torture
from offbeat.testing.torture.campaign import Results, attempt, campaign, shrunk
from offbeat.testing.torture.cases import case_of, random_case, text_of


def main(arguments: list[str] | None = None) -> int:
    """Run random cases, or one case; exit code 1 if one fails."""
    about = (torture.__doc__ or "").partition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m offbeat.testing.torture", description=f"{about}.")
    parser.add_argument("--runs", type=int, default=100, help="Number of random cases (default: 100).")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the first case; the others count up from it.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of processes (default: 1).")
    parser.add_argument("--seconds", type=float, default=inf, help="Start no batch of cases after this many seconds.")
    parser.add_argument("--case", help="Run this case only, as printed for a failing one.")
    parser.add_argument("--out", type=Path, help="Append a line per case to this file, and skip the cases in it.")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs = {options.jobs}: at least 1 is needed")
    if options.case is not None:
        reason, wrong = attempt(case_of(options.case))
        print(wrong or f"passes: {reason}")
        return int(bool(wrong))
    results, began, new = Results(options.out), time.monotonic(), 0
    seeds = range(options.seed, options.seed + options.runs)
    for found in campaign(seeds, results, seconds=options.seconds, jobs=options.jobs):
        new += 1
        if found.wrong:
            small = shrunk(random_case(found.seed))
            print(f"case {found.seed} fails: {attempt(small)[1] or found.wrong}")
            print(f"  python -m offbeat.testing.torture --case '{text_of(small)}'", flush=True)
    print(f"{results}; {new} of them in these {time.monotonic() - began:.0f} s")
    return int(results.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
