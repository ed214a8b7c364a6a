"""The acknowledgements of values that answers only lent, as their receiver sends them over one link.

Where both ends are on one host they are notes in a page of memory (`transport/ack_page.py`), else messages.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from ropewalk.calls.messages import Begun, Taken, TakenPageHere
from ropewalk.transport.ack_page import NUM_LOTS, AckLease, AckPage
from ropewalk.transport.barriers import can_fence
from ropewalk.transport.link import Link


class Acknowledgements:
    """Tells the lender of values which have arrived.

    Args:
        link: the link to the lender.
        send: sends it a message.
    """

    def __init__(self, link: Link, send: Callable[[Taken | Begun], None]) -> None:
        self._link = link
        self._send = send
        self._page: AckPage | None = None
        self._free_lots = list(range(NUM_LOTS))

    def share_page(self) -> None:
        """From now on note arrived values in shared memory, if the link can carry it."""
        if self._link.stream.carries_fds:
            with contextlib.suppress(OSError):  # then messages carry the acknowledgements
                fd = AckPage.create()
                try:
                    self._page = AckPage(fd)
                    self._link.send(TakenPageHere(), fds=[fd])
                finally:
                    os.close(fd)

    def took(self, number: int) -> None:
        """Tell that the answer to a call has arrived."""
        with contextlib.suppress(ValueError):  # the page was closed with the link
            if self._page and self._page.note(number):
                return
        self._send(Taken(number))

    def lot(self) -> tuple[int, AckLease] | None:
        """Return a free place for values that come with an answer; None if they have to be asked for one by one.

        The place belongs to the caller until it calls `free_lot`.
        """
        page = self._page
        if page is None or not can_fence():
            return None
        with contextlib.suppress(IndexError, ValueError):  # all are in use; it was closed with the link
            place = self._free_lots.pop()
            return place, page.lot(place)
        return None

    def free_lot(self, place: int) -> None:
        """Release a place; may run at any moment."""
        self._free_lots.append(place)

    def tell_begun(self, target: int) -> None:
        """Tell an object, which asked to be told, that values lent together are being begun."""
        self._send(Begun(target))

    def close(self) -> None:
        """Unmap the page, with its lots; may be called twice."""
        if self._page:
            self._page.close()


__all__ = ["Acknowledgements"]
