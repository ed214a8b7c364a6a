"""Opens torch's store in the first rank of a group before the ranks' own code runs.

    first rank    rendezvous() ─ store is open ─ loads data, compiles, ... ─ init_process_group: finds the store open
    other ranks   rendezvous() ─────────────────── init_process_group: connected at once, and waits in the store

The first rank's `init_process_group` opens the store otherwise. A rank that came before tries to connect again and
again, with pauses of torch's that grow by half each time, up to a minute: where the first rank came 45 s later than the
other, both waited another 17 to 24 s (torch 2.13). Nor can another process take the port meanwhile.

`torchrun` keeps one store for all groups that a script makes. Here the store belongs to the script once its first group
is there, and ends with it: a script that makes a second one gets a new store, without the addresses in the old one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from ropewalk.program.preloading import names_in
from ropewalk.transport.loop import Loop

_LOOK_S = 0.1
"""Seconds between two looks whether the script has made its group."""


class EarlyStore:
    """A store that is open until the code of this process has one on the same port.

    Args:
        distributed: the module `torch.distributed`.

    Raises:
        RuntimeError: torch cannot open it.
    """

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        # `multi_tenant`: who opens a store on this port in this process shares this one, as `init_process_group` does.
        self._store: Any = distributed.TCPStore(
            "localhost",
            0,
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
        )
        self.port: int = self._store.port

    def leave_when_shared(self, loop: Loop) -> None:
        """Give it up as soon as the code of this process has made its group."""
        if self._distributed.is_initialized():
            self._store = None
        else:
            loop.call_later(_LOOK_S, lambda: self.leave_when_shared(loop))


def early_store(function: Any) -> EarlyStore | None:
    """Open the store, if the code of a rank is going to make a group in this process.

    Args:
        function: the function or `Script` that the rank runs. One that does not name `init_process_group` itself may
            start another process that opens the store, or use the port for something else.

    Returns:
        The store; None if it is the affair of the code, also where torch was not imported before.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or "init_process_group" not in names_in(function):
        return None
    if distributed.is_available() and not distributed.is_initialized():
        with contextlib.suppress(RuntimeError):
            return EarlyStore(distributed)
    return None


__all__ = ["EarlyStore", "early_store"]
