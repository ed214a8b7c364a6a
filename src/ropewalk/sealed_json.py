"""Manifests of folders: JSON that begins with its own SHA-256, so that a manifest is whole, or refused.

    {"format":1,"sha256":"4f0c...","manifest":{...}}

The digest detects damage, not malice. One file with its parts is a `state_container`.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

_FORMAT = 1
_Manifest = TypeVar("_Manifest", bound=msgspec.Struct)


class _Sealed(msgspec.Struct, frozen=True):
    format: int
    sha256: str
    manifest: msgspec.Raw


class BrokenSeal(ValueError):
    """The bytes are not those of a manifest that was sealed; says why."""


def sealed(manifest: msgspec.Struct) -> bytes:
    """Return a manifest as the content of a file.

    Raises:
        TypeError: a field of it is not plain data.
    """
    content = msgspec.json.encode(manifest)
    digest = hashlib.sha256(content).hexdigest()
    return f'{{"format":{_FORMAT},"sha256":"{digest}","manifest":'.encode() + content + b"}\n"


def unsealed(content: bytes, kind: type[_Manifest]) -> _Manifest:
    """Return the manifest of a file.

    Args:
        content: the content of the file.
        kind: of the manifest.

    Raises:
        BrokenSeal: it is damaged, of another format, or no manifest of this kind.
    """
    try:
        seal = msgspec.json.decode(content, type=_Sealed)
        if seal.format != _FORMAT:
            raise BrokenSeal(f"it is of format {seal.format}, and this version of Ropewalk reads format {_FORMAT}")
        if hashlib.sha256(seal.manifest).hexdigest() != seal.sha256:
            raise BrokenSeal("its bytes are not those that were written (SHA-256 differs)")
        return msgspec.json.decode(seal.manifest, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenSeal(f"it cannot be read ({error})") from None


__all__ = ["BrokenSeal", "sealed", "unsealed"]
