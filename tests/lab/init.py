"""Process 1 of a lab machine: mounts /proc, then lives until the tests close the machine or end in any way.

Started as `python -I -S init.py PIDFD`, with a descriptor that becomes readable when
the process of the tests has ended. When process 1 ends, the kernel kills every other
process of the machine, and with the last one its network and mounts are gone: so
nothing is left behind, also when the tests are killed with SIGKILL.
"""

import ctypes
import os
import select
import signal
import sys


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the orphans of this machine by itself
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # Ctrl-C in a terminal is for the tests
        signal.signal(number, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        sys.exit(f"/proc cannot be mounted: {os.strerror(ctypes.get_errno())}")
    os.write(1, b"up")
    os.close(1)
    select.select([int(sys.argv[1])], [], [])


if __name__ == "__main__":
    main()
