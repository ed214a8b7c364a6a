"""A forked process that makes a call and then stays until it is killed: for what has to survive a death."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable


class ForkedProcess:
    """Runs `call` in a copy of this process, at once; killed at the end of the `with` block."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._read, write = os.pipe()
        gc.collect()  # what the copy would finalise
        sys.stdout.flush()
        with warnings.catch_warnings():
            # Torch's threads are asleep, and the copy has none of them: as in the workers of torch's own DataLoader.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            try:
                call()
                os.write(write, b"!")
                signal.pause()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(write)
        self.is_alive = True

    def wait_until_done(self) -> None:
        """Until the call has returned."""
        assert os.read(self._read, 1) == b"!", "the call raised"

    def kill(self) -> None:
        """SIGKILL; may be called twice."""
        if self.is_alive:
            self.is_alive = False
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._read)
