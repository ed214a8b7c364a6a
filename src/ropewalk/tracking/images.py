"""Images as files: PNG from arrays, figures and images of PIL; files as they are."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

_PNG = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""Types of PNG (https://www.w3.org/TR/png-3/, section 11.2.1) by number of channels: grey, RGB, RGBA."""
_OVERSHOOT = 0.5
"""How far interpolation and rounding may lead out of 0 to 1 without a word."""


def image_file(image: Any, told: Callable[[str], object] = lambda _: None) -> tuple[bytes, str]:
    """Return the content of an image file, and its ending.

    Args:
        image: an array or tensor of shape (height, width) or (height, width, channels) with 1, 3 or 4 channels: bytes,
            booleans, or floats from 0 to 1; a figure of matplotlib; an image of PIL; or the path of an image file.
        told: is told in words if most of an array would be black or white.

    Raises:
        TypeError: it is none of these.
        ValueError: the array has another shape, or whole numbers that are no bytes.
        FileNotFoundError: there is no such file.
    """
    if isinstance(image, str | os.PathLike):
        path = Path(cast("str", image))
        return path.read_bytes(), path.suffix.lower() or ".png"
    if hasattr(image, "savefig"):
        file = io.BytesIO()
        image.savefig(file, format="png")
        return file.getvalue(), ".png"
    if hasattr(image, "save") and hasattr(image, "mode"):
        file = io.BytesIO()
        image.save(file, format="png")
        return file.getvalue(), ".png"
    if hasattr(image, "shape"):
        return _png_of_array(image, told), ".png"
    raise TypeError(
        f"an image is an array, a tensor, a figure of matplotlib, an image of PIL, or a path, not "
        f"{type(image).__name__}"
    )


def _png_of_array(image: Any, told: Callable[[str], object]) -> bytes:
    import numpy as np  # imported here: a program that has an array has imported numpy, or torch, which brings it

    array = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in _COLOUR_TYPES or 0 in array.shape:
        raise ValueError(
            f"an image has the shape (height, width) or (height, width, channels) with 1, 3 or 4 channels, not "
            f"{array.shape}; torch's (channels, height, width) is turned by image.permute(1, 2, 0)"
        )
    if array.dtype == np.bool_:
        array = array * np.uint8(255)
    elif array.dtype != np.uint8:
        array = _bytes_of(array, told)
    return png(np.ascontiguousarray(array).tobytes(), array.shape[1], array.shape[0], channels)


def _bytes_of(array: Any, told: Callable[[str], object]) -> Any:
    """Return numbers from 0 to 1 as bytes.

    Raises:
        ValueError: they are whole numbers, and not all 0 or 1, as in a mask.
    """
    import numpy as np

    numbers = np.nan_to_num(array.astype(np.float64), posinf=1.0, neginf=0.0)
    least, largest = float(numbers.min()), float(numbers.max())
    if array.dtype.kind in "iu" and not 0 <= least <= largest <= 1:
        raise ValueError(
            f"an image has bytes, or numbers from 0 to 1, and this one is of {array.dtype} from {least:g} to "
            f"{largest:g}; for pixels write image.astype('uint8'), for counts image / image.max()"
        )
    if least < -_OVERSHOOT or largest > 1 + _OVERSHOOT:
        told(f"has numbers from {least:.3g} to {largest:.3g}; those below 0 are black, and those above 1 white")
    return (np.clip(numbers, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def png(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Encode pixels as a PNG file.

    Args:
        pixels: height x width x channels bytes.
        width: number of columns.
        height: number of rows.
        channels: 1, 3 or 4.
    """
    row = width * channels
    rows = b"".join(b"\0" + pixels[at : at + row] for at in range(0, len(pixels), row))  # each row without a filter
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return _PNG + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 6)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


__all__ = ["image_file", "png"]
