"""The file of a saved state: it comes back as it was, or is named as damaged, and takes no more memory than it has."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import CheckpointCorrupt
from ropewalk.state_container import read_container, write_container


def written(manifest: dict[str, Any], *parts: bytes | memoryview) -> bytes:
    file = io.BytesIO()
    write_container(file, manifest, parts)
    return file.getvalue()


def read(data: bytes) -> tuple[dict[str, Any], list[bytearray]]:
    return read_container(io.BytesIO(data), len(data), "here")


def forged(manifest: bytes, *parts: bytes, format: int = 1) -> bytes:
    """A file whose digest fits."""
    body = b"".join((manifest, *parts))
    return struct.pack(">8sHI32s", b"RWCHKPT\n", format, len(manifest), hashlib.sha256(body).digest()) + body


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_manifest_and_parts_come_back_as_they_were(parts: list[bytes]) -> None:
    manifest, found = read(written({"name": "\N{GREEK SMALL LETTER PI}", "big": 1 << 127}, *parts))
    assert manifest == {"name": "\N{GREEK SMALL LETTER PI}", "big": 1 << 127, "sizes": list(map(len, parts))}
    assert found == parts
    for part in found:
        part.append(0)  # memory of its own


def test_the_same_content_has_the_same_digest_and_is_not_written_again() -> None:
    file = io.BytesIO()
    digest = write_container(file, {"a": 1}, [b"x", memoryview(b"yz")])
    size = len(file.getvalue())
    assert write_container(file, {"a": 1}, [b"x", b"yz"], unless=digest) == digest
    assert len(file.getvalue()) == size
    assert write_container(file, {"a": 2}, [b"x", b"yz"], unless=digest) != digest
    assert len(file.getvalue()) == 2 * size


@settings(max_examples=200)
@given(st.data())
def test_any_flipped_bit_and_any_truncation_is_seen(data: st.DataObject) -> None:
    good = written({"facts": {"generation": 3}}, b"a pickle", b"a buffer" * 9)
    if data.draw(st.booleans()):
        bad = bytearray(good)
        bad[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        bad = bytearray(good[: data.draw(st.integers(0, len(good) - 1))])
    with pytest.raises(CheckpointCorrupt, match="here is damaged: ") as caught:
        read(bytes(bad))
    assert caught.value.path == "here"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it ends after 0 bytes"),
        (b"x" * 60, "does not begin like a checkpoint"),
        (forged(b'{"sizes":[]}', format=2), "of format 2, and this version of Ropewalk reads format 1"),
        (forged(b'{"sizes":[]}', b"more"), "its manifest speaks of 58"),
        (forged(b'{"sizes":[1152921504606846976]}'), "its manifest speaks of 11529215046068"),
        (forged(b'{"sizes":[8,-4]}', b"four"), "does not say how long its parts are"),
        (forged(b'{"sizes":[true]}', b"1"), "does not say how long its parts are"),
        (forged(b'{"sizes":3}'), "does not say how long its parts are"),
        (forged(b"[]"), "does not say how long its parts are"),
        (forged(b"{"), "its manifest cannot be read"),
        (forged(b"\xff"), "its manifest cannot be read"),
        (forged(b"[" * 100_000), "its manifest cannot be read"),
        (forged(b'{"sizes":[' + b"1" * 5000 + b"]}"), "its manifest cannot be read"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_forged_file_is_a_damaged_one(data: bytes, why: str) -> None:
    with pytest.raises(CheckpointCorrupt, match=why):
        read(data)


def test_the_format_is_the_one_that_was_always_written_for_services() -> None:
    manifest = {"name": "store", "replica": 0, "facts": {}}
    head = json.dumps({**manifest, "sizes": [3]}, separators=(",", ":")).encode()
    assert written(manifest, b"abc") == forged(head, b"abc")
