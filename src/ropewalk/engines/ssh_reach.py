"""Says which hosts of the ssh engine can be used from here; runs on the host where a launcher is about to be submitted.

python -m ropewalk.engines.ssh_reach  < the options of the engine as JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ropewalk.engines.ssh import SshEngine

_NUM_TOLD = 20
"""The number of hosts whose failures are told."""


def reach(options: dict[str, Any]) -> dict[str, Any]:
    """Return the number of hosts that can be used, and why some cannot, by host."""
    engine = SshEngine(options)
    try:
        found = engine.check_hosts()
    finally:
        engine.close()
    failures = {entry: next((each.detail for each in of_host if not each.ok), "") for entry, of_host in found.items()}
    failures = {entry: why for entry, why in failures.items() if why}
    return {"num_usable": len(found) - len(failures), "failures": dict(list(failures.items())[:_NUM_TOLD])}


if __name__ == "__main__":
    print(json.dumps(reach(json.load(sys.stdin))))
