"""Makes the pictures of the gallery: runs each example as a reader would, and keeps its picture.

    make gallery                                 # all of them, some minutes on two cores
    python -m docs.gallery.make [NAME ...]       # some of them, in the folder of the project

For each it prints the seconds that the example took, the CPU time of all its processes, and what it printed at last.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
EXAMPLES = FOLDER.parents[1] / "examples"

PICTURES = {
    "evolve_cartpole": ["--picture", "{picture}.png"],
    "es_bipedal": ["--generations", "160", "--picture", "{picture}.png"],
    "ga_lunar_lander": ["--picture", "{picture}.png"],
    "map_elites": ["--picture", "{picture}.png"],
    "pbt_digits": ["--picture", "{picture}.png"],
    "poet_bipedal": ["--picture", "{picture}.png"],
    "search_digits": ["--picture", "{picture}.png"],
    "rl_cartpole": ["--picture", "{picture}.png"],
    "rl_pendulum": ["--picture", "{picture}.png"],
    "rl_lunar_lander": ["--picture", "{picture}.png"],
    "rl_memory": ["--picture", "{picture}.png"],
    "rl_offline": ["--picture", "{picture}.png"],
    "rl_central_inference": ["--picture", "{picture}.png"],
    "gradient_exchange": ["--picture", "{picture}.svg"],
    "train_unet": ["--drawn", "{picture}.svg"],
}
"""Of each example with a picture, the arguments that say where its picture goes."""


def make(name: str) -> int:
    """Run an example, and print what it took.

    Returns:
        Its exit status.
    """
    arguments = [part.format(picture=FOLDER / name) for part in PICTURES[name]]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"ROPEWALK_STORE": f"{folder}/runs.db"}
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"--- {name}: {time.monotonic() - began:.0f} s, {cpu_s:.0f} s of CPU time, exit status {done.returncode}")
    print("\n".join((done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-4:]), flush=True)
    return done.returncode


def main() -> int:
    """Make the pictures that the command line names, or all."""
    parser = argparse.ArgumentParser(description="Make the pictures of the gallery.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    names = parser.parse_args().names or list(PICTURES)
    if unknown := set(names) - set(PICTURES):
        parser.error(
            f"no example with a picture is called {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}"
        )
    return max(make(name) for name in names)


if __name__ == "__main__":
    raise SystemExit(main())
