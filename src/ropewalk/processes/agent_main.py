"""The program of an agent: imports it without the garbage collector, which would look through all modules in vain.

That saves a tenth of the time until a first process is ready. What was imported stays for good and is shared with the
processes that are forked from here, so the collector never looks at it again. An agent ends as its processes do: the
interpreter is not taken apart, for which the launcher would have to wait.
"""

from __future__ import annotations

import gc

from ropewalk.interpreters import tell_version

if __name__ == "__main__":
    gc.disable()
    try:
        from ropewalk.processes import bootstrap
        from ropewalk.processes.agent import main
    except ImportError:  # such as of a package that is there, but for another version of Python
        tell_version()
        raise

    gc.freeze()
    gc.enable()
    main()
    bootstrap.leave(0)
