"""The program of an agent: imports it without the garbage collector, which would look through all modules in vain.

That saves a tenth of the time until a first process is ready. What was imported stays for good and is shared with the
processes that are forked from here, so the collector never looks at it again.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()
    from ropewalk.processes.agent import main

    gc.freeze()
    gc.enable()
    main()
