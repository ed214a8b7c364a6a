"""Starts and deaths, each in an interpreter of its own.

    python fresh_calls.py launch ropewalk     seconds until five serving processes have each answered: cold, then again
    python fresh_calls.py killed managers     what becomes of a client's next call when its server is killed

The answer is one line of JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

from call_contenders import LIBRARIES, Client, Contender

NUM_NODES = 5
STATE = 41


def launch(name: str) -> dict[str, float]:
    return {"cold_s": launch_s(name), "next_s": launch_s(name)}


def launch_s(name: str) -> float:
    """From before the first start until the last of five has answered."""
    start = time.perf_counter()
    if name == "ropewalk":
        with importlib.import_module("call_subject").five_nodes() as ready:
            ready()
            return time.perf_counter() - start
    serving: list[Contender] = [LIBRARIES[name][1]() for _ in range(NUM_NODES)]
    for contender in serving:
        contender.client().method("empty")()
    elapsed = time.perf_counter() - start
    for contender in serving:
        contender.close()
    return elapsed


def killed(name: str) -> dict[str, Any]:
    if name == "ropewalk":
        return importlib.import_module("call_subject").killed(STATE)
    with contextlib.closing(LIBRARIES[name][1]()) as contender:
        return after_kill(contender.client())


def after_kill(client: Client) -> dict[str, Any]:
    for _ in range(STATE):
        client.method("add")()
    os.kill(client.method("pid")(), signal.SIGKILL)
    start = time.perf_counter()
    try:
        value = client.method("value")()
    except Exception as error:  # each library has its own: the table shows which
        return {"answered_s": None, "restored": False, "outcome": f"raises {type(error).__name__}"}
    elapsed = time.perf_counter() - start
    return {"answered_s": elapsed, "restored": value == STATE, "outcome": f"{elapsed:.3f} s, state {value} of {STATE}"}


def main(measurement: str, name: str) -> None:
    answer = launch(name) if measurement == "launch" else killed(name)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
