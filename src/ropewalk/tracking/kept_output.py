"""What an attempt prints, kept in the folder of its run: `ropewalk runs logs` shows it.

    print ─▶ sys.stdout ─▶ as before
                   └─────▶ <folder of the run>/output/<attempt>.txt

This keeps what Python prints through `sys.stdout` and `sys.stderr`. What libraries in other languages write to the
descriptors is in the output of the process alone, whose last lines are in the cause of its death.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TextIO

from ropewalk.trusted_files import make_folder, open_to_append

logger = logging.getLogger(__name__)

OUTPUT = "output"
"""Folder, in the folder of a run, of the output of its attempts: 1.txt and so on."""
_MOST_BYTES = 64 << 20
"""Bytes that are kept of an attempt; the rest is only printed."""


@contextlib.contextmanager
def keeping_output(folder: Path, attempt: int) -> Generator[None]:
    """Keep what this process prints while the block runs; a disk that cannot be written ends that with one warning.

    Args:
        folder: folder of the run.
        attempt: number of the attempt.
    """
    kept = _OutputFile(folder / OUTPUT / f"{attempt}.txt")
    before = sys.stdout, sys.stderr
    doubled = _DoubledStream(sys.stdout, kept), _DoubledStream(sys.stderr, kept)
    sys.stdout, sys.stderr = doubled  # type: ignore[assignment]  # they do whatever the streams do
    try:
        yield
    finally:
        for name, stream, original in zip(("stdout", "stderr"), doubled, before, strict=True):
            if getattr(sys, name) is stream:  # user code may have put another one there, which is its own
                setattr(sys, name, original)
        kept.close()


def output_files(folder: str | Path) -> Iterator[tuple[int, Path]]:
    """Yield the files with the output of a run, by number of the attempt.

    Args:
        folder: folder of the run.
    """
    with contextlib.suppress(OSError):
        names = sorted(
            (path for path in Path(folder, OUTPUT).iterdir() if path.suffix == ".txt"), key=lambda path: path.name
        )
        numbered = [(int(path.stem), path) for path in names if path.stem.isdecimal() and not path.is_symlink()]
        yield from sorted(numbered)


class _OutputFile:
    """A file that is made with the first text, and written at once, up to a bound."""

    def __init__(self, path: Path) -> None:
        self._fd, self._path, self._left, self._is_over = -1, path, _MOST_BYTES, False

    def write(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        if self._is_over or not data:
            return
        is_too_much = len(data) > self._left
        if is_too_much:
            data = data[: self._left] + f"\n[more than {_MOST_BYTES >> 20} MiB are not kept]\n".encode()
        self._left -= len(data)
        try:
            if self._fd < 0:
                make_folder(self._path.parent)
                self._fd = open_to_append(self._path)
            os.write(self._fd, data)
        except OSError as error:
            self.close()  # before the warning, which is printed
            logger.warning("the output of this attempt is not kept in %s: %s", self._path, error)
        if is_too_much:
            self.close()

    def close(self) -> None:
        self._is_over = True
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _DoubledStream:
    """A text stream whose text also goes to a file."""

    def __init__(self, stream: TextIO, kept: _OutputFile) -> None:
        self._stream, self._kept = stream, kept

    def write(self, text: str) -> int:
        self._kept.write(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


__all__ = ["OUTPUT", "keeping_output", "output_files"]
