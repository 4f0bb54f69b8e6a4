"""Fuzz what reads other people's input: ``python -m tests.fuzz.run --seconds 90 [--seed N] [--target NAME ...]``.

``--target neighbours`` tries neighbouring inputs instead: what one person can move is what is charged.

Rounds are numbered, and a round's input depends on the seed and its number only. A fault is printed with the command
that repeats it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import polars as pl

from tests.fuzz.neighbours import COMPARED
from tests.fuzz.targets import HOSTILE, TARGETS

#: Seconds of the processor, and of the clock for one that hangs, that a round may take; bytes of address space.
SECONDS, HANGS = 30, 600
MEMORY = 8 << 30


def main() -> int:
    """Run rounds of all targets in turn until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--seed", type=int, default=None, help="unset: another one every time")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--rounds", type=int, default=None, help="end after so many rounds of each target")
    parser.add_argument("--target", nargs="*", default=sorted(HOSTILE), choices=sorted(TARGETS))
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, _too_long)
    signal.signal(signal.SIGALRM, _too_long)
    warnings.simplefilter("ignore")
    ends, number, faults = time.monotonic() + arguments.seconds, arguments.first, 0
    done = dict.fromkeys(arguments.target, 0)
    while time.monotonic() < ends and (arguments.rounds is None or number < arguments.first + arguments.rounds):
        for name in arguments.target:
            faults += not round_of(name, seed, number)
            done[name] += 1
        number += 1
    if COMPARED:
        print("neighbours compared: " + ", ".join(f"{name} {n:,}" for name, n in sorted(COMPARED.items())))
    print(f"seed {seed}: " + ", ".join(f"{name} {n:,}" for name, n in done.items()) + f"; {faults} faults")
    return 1 if faults else 0


def round_of(name: str, seed: int, number: int) -> bool:
    """Run one round; return False on a fault."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(HANGS)
    try:
        TARGETS[name](random.Random(f"{seed}/{name}/{number}"), folder)
    except (Exception, pl.exceptions.PanicException):
        traceback.print_exc()
        print(f"to repeat: python -m tests.fuzz.run --target {name} --seed {seed} --first {number} --rounds 1")
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _too_long(number: int, _: Any) -> None:
    spent = f"{SECONDS} seconds of the processor" if number == signal.SIGPROF else f"{HANGS} seconds"
    raise TimeoutError(f"a round took more than {spent}")


if __name__ == "__main__":
    sys.exit(main())
