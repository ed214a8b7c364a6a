"""How long a call looks whether it can be made before it sleeps: to sleep and to be woken costs more than a short look.

    wait ─▶ look ─ it has become possible ─▶ no sleep
              └ in vain ─▶ sleep ─ 100 µs or less ─▶ the next one looks for longer      else: for 2 µs

A long look takes about as long as a wake-up, so a call takes at most twice as long as if it had known whether to sleep
(Karlin et al., "Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor", SOSP 1991).
"""

from __future__ import annotations

_FEWEST, _MOST = 8, 200
"""The number of looks in a short and in a long one: 2 and 50 microseconds."""
_SHORT_S = 1e-4
"""The longest sleep, in seconds, that a long look would have saved."""
_MOST_PATIENCE = 256


class Looking:
    """Decides for the calls of one process to one object."""

    def __init__(self) -> None:
        self._num_short = 0
        """The number of short sleeps since the last long one, or since a long look was in vain."""
        self._patience = 1
        """After how many of them a call looks for longer."""

    @property
    def num_looks(self) -> int:
        """How often a call looks before it sleeps."""
        return _MOST if self._num_short >= self._patience else _FEWEST

    def ended(self, num_looks: int, in_vain: bool) -> None:
        """Note what came of looking.

        Long looks that are in vain although sleeps are short say that the other side needs this very core: they are
        tried again after 2, 4, 8, ... short sleeps.
        """
        if num_looks == _MOST:
            self._patience = min(2 * self._patience, _MOST_PATIENCE) if in_vain else 1
            self._num_short = 0 if in_vain else self._num_short

    def slept(self, seconds: float) -> None:
        """Note how long a call slept."""
        self._num_short = self._num_short + 1 if seconds <= _SHORT_S else 0


__all__ = ["Looking"]
