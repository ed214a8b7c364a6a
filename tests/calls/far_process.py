"""The other process of a test: serves one object of `tests.calls.objects` until it is killed.

python -m tests.calls.far_process SOCKET CLASS
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tests.calls import objects
from tests.calls.ends import End, Places


def main() -> None:
    path = Path(sys.argv[1])
    end = End(path.parent, path.stem, Places())
    served = end.serve(getattr(objects, sys.argv[2])(), path.stem)
    opened = threading.Event()
    end.loop.call_soon(opened.set)
    opened.wait()
    print("ready", served.target, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
