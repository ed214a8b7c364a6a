"""Scripts that tests start as processes of their own, as a user would: `python scripts.py NAME`."""

from __future__ import annotations

import itertools
import logging
import resource
import signal
import sys
import time

import ropewalk as rw


def log_for_ever() -> None:
    """Log, and print what was logged; runs until it is killed."""
    run = rw.track("killed", system=False)
    print(run.id, flush=True)
    for number in itertools.count(1):
        run.log(number=number)
        print(number, flush=True)
        time.sleep(0.001)


def fill_the_disk() -> None:
    """Log while no file can grow, as on a full disk, and afterwards."""
    logging.basicConfig(format="%(message)s")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with rw.track("full", system=False) as run:
        print(run.id, flush=True)
        for step in run.steps(300):
            if step == 100:
                run.flush()
                resource.setrlimit(resource.RLIMIT_FSIZE, (1, most))
            if step == 200:
                is_written = run.flush(1)
                print("written" if is_written else "waits", run.checkpoint({"n": step}), flush=True)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            run.log({f"loss/{layer}": step for layer in range(20)})
        print("written" if run.flush() else "waits", run.checkpoint({"n": run.step}), flush=True)


def leave_by_sys_exit() -> None:
    """Exit with a code, and without `with`."""
    rw.track("left", name="left", system=False)
    raise ValueError("uncaught")


def count_to(total: int) -> None:
    """Count, with checkpoints; the count is in the checkpoints, and each step is logged."""
    with rw.track("counting", name="counting", config={"total": total}, system=False) as run:
        saved = run.restore()
        count = saved.state["count"] if saved else 0
        for _ in run.steps(run.config["total"]):
            count += 1
            run.log(count=count)
            run.checkpoint({"count": count})
            time.sleep(0.005)


def count_for_ever() -> None:
    """Count until it is paused, or forked with an end."""
    count_to(10**9)


def run_briefly() -> None:
    """Make runs that end soon after a line has come, one after the other, until standard input ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which a run replaces while it lasts
    while True:
        try:
            with rw.track("brief", system=False) as run:
                print(run.id, flush=True)
                if not sys.stdin.readline():
                    return
                time.sleep(0.6)
        except SystemExit:
            pass
        print("ended", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
