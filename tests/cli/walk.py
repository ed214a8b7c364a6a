"""A program for `test_programs.py`: nodes that sleep, call, compute in C and talk. Run as a file, with its own words.

python walk.py [loud] [busy]
"""

from __future__ import annotations

import re
import sys
import time

import ropewalk as rw


class Store:
    """Answers at once, or after a long time."""

    def add(self, number: int) -> int:
        return number + 1

    def look_up_slowly(self, seconds: float) -> None:
        time.sleep(seconds)


def sleeper() -> None:
    def sleep_in_my_code() -> None:
        time.sleep(1000)

    print("the sleeper begins\n", end="", flush=True)  # in one piece, as below: threads print to one stream
    sleep_in_my_code()


def caller(store: Store) -> None:
    store.add(1)
    store.look_up_slowly(1000)


def cruncher() -> None:
    def crunch_in_c() -> None:
        re.match("(a|aa)+$", "a" * 100 + "b")  # takes for ever, and never lets go of the interpreter

    crunch_in_c()


def talker(letter: str) -> None:
    number = 0
    while not rw.stopping():
        number += 1
        print(f"{number} " + letter * 500, flush=True)
        print("half a line, ", end="", flush=True)
        time.sleep(0.002)
        print("and its other half", flush=True)


def main() -> None:
    program = rw.Program("walk")
    store = program.add(rw.Service(Store), name="store")
    program.add(rw.Worker(sleeper), name="sleeper")
    program.add(rw.Worker(caller, store), name="caller")
    if "loud" in sys.argv:
        program.add(rw.Worker(talker, "x"), name="talker", replicas=2)
    if "busy" in sys.argv:
        program.add(rw.Worker(cruncher), name="cruncher")
    running = program.launch()
    try:
        running.wait_ready()
        print("ready\n", end="", flush=True)  # `print` writes an `end` by itself, and others write in between
        print(f"wait returned {running.wait()} {running.status().state}\n", end="", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise


if __name__ == "__main__":
    main()
