"""`UnsentException`: stands for an exception that was raised in another process and cannot be pickled."""

from __future__ import annotations

from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]  # missing from the stubs
from typing import Any


class UnsentException(MaybeEncodingError):  # pyright: ignore[reportUntypedBaseClass]
    """An exception of another process, in words; multiprocessing would say that a result could not be sent.

    Args:
        problem: why it cannot be pickled.
        error: the exception.
        words: what `str` returns.
    """

    def __init__(self, problem: Any, error: Any, words: str = "") -> None:
        super().__init__(problem, error)  # pyright: ignore[reportUnknownMemberType]
        self.words = words

    def __str__(self) -> str:
        return self.words


__all__ = ["UnsentException"]
