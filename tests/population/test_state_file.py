"""State files: what goes in comes out, damage is noticed, and a file is there whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ropewalk.errors import CheckpointCorrupt, FileNotTrusted
from ropewalk.population.state_file import is_plain, pack_state, read_state, unpack_state, write_state
from tests.other_users import MALLORY, as_user, needs_root
from tests.population.local_loop import same_state

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    arrays.arrays(st.sampled_from([np.float32, np.float64, np.int64]), arrays.array_shapes(min_dims=0, max_side=3)),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(TREES)
def test_a_tree_comes_back_as_it_went_in(tree: Any) -> None:
    assert same_state(unpack_state(pack_state(tree), "here"), tree)


def test_bytes_and_tuples_and_numbers_of_numpy_come_back_too() -> None:
    tree = {"bytes": b"\x00\xff", "tuple": (1, (2.5, "x")), "float": np.float32(0.5), "int": np.int64(2**60)}
    assert unpack_state(pack_state(tree), "here") == {**tree, "float": 0.5, "int": 2**60}


def test_what_cannot_be_saved_is_named() -> None:
    with pytest.raises(TypeError, match=r"state\['rng'\]\[1\] is .* of type set"):
        pack_state({"rng": [1, {2}]})
    with pytest.raises(TypeError, match="has the key 3"):
        pack_state({"table": {3: 1}})


@pytest.mark.parametrize("at", [0, 20, 60, -1])
def test_a_flipped_bit_is_noticed(tmp_path: Path, at: int) -> None:
    path = tmp_path / "a.state"
    write_state(path, {"x": np.arange(5)})
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    with pytest.raises(CheckpointCorrupt, match=r"a\.state"):
        read_state(path)


def test_a_file_that_was_cut_short_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    size = write_state(path, {"x": np.arange(50)})
    os.truncate(path, size - 7)
    with pytest.raises(CheckpointCorrupt):
        read_state(path)


WRITTEN_LONG_AGO = Path(__file__).parent / "state_of_format_1" / "generation-000000007.state"


def written_long_ago(body: bytes | bytearray) -> bytes:
    """A file of the format before, with a digest that fits."""
    return b"ropewalk state 1\n" + hashlib.sha256(body).digest() + body


def container(body: bytes | bytearray, manifest_bytes: int) -> bytes:
    """A file of today's format, with a digest that fits."""
    return struct.pack(">8sHI32s", b"RWCHKPT\n", 1, manifest_bytes, hashlib.sha256(body).digest()) + body


# numpy takes some headers for those of Python 2, warns, and reads them.
@pytest.mark.filterwarnings("ignore:Reading .*npy.* required additional header parsing:UserWarning")
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_forged_file_is_a_damaged_one_whatever_is_in_it(data: st.DataObject) -> None:
    """The digest fits, so that all that stands behind it is read. Nothing is unpickled, and nothing hangs."""
    good = pack_state({"a": [1, 2.5, None, float("inf")], "b": (np.arange(6).reshape(2, 3), b"xy"), "c": "text"})
    is_old = data.draw(st.booleans())
    body = bytearray(WRITTEN_LONG_AGO.read_bytes()[49:] if is_old else good[46:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "repeat", "digit"])):
            case "flip":
                body[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del body[at : at + data.draw(st.integers(1, 40))]
                body += b"." * (not body)
            case "repeat":
                body[at:at] = body[at : at + 20]
            case _:
                body[at] = ord(data.draw(st.sampled_from('0123456789-{}[]"')))
    (manifest_bytes,) = struct.unpack_from(">I", good, 10)
    forged = written_long_ago(body) if is_old else container(body, manifest_bytes)
    with contextlib.suppress(CheckpointCorrupt):
        unpack_state(forged, "here")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"dict":' * 100_000, '{"array":7}', '{"float":"x"}', "{}", "1e", '{"a":1,"b":2}'],
    ids=lambda text: text[:12],
)
def test_a_forged_tree_is_a_damaged_file(text: str) -> None:
    body = struct.pack("<Q", len(text)) + text.encode()
    with pytest.raises(CheckpointCorrupt, match="here is damaged: it holds no saved state"):
        unpack_state(written_long_ago(body), "here")
    manifest = f'{{"tree":{text},"sizes":[]}}'.encode()
    with pytest.raises(
        CheckpointCorrupt, match=r"here is damaged: it(s manifest cannot be read| holds no saved state)"
    ):
        unpack_state(container(manifest, len(manifest)), "here")


@pytest.mark.parametrize("at", [0, 20, 60, -1])
def test_damage_to_a_file_that_was_written_long_ago_is_noticed(at: int) -> None:
    data = bytearray(WRITTEN_LONG_AGO.read_bytes())
    data[at] ^= 4
    with pytest.raises(CheckpointCorrupt, match="here is damaged"):
        unpack_state(bytes(data), "here")


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_file_is_ours_alone_under_any_umask(tmp_path: Path, umask: int) -> None:  # S12
    before = os.umask(umask)
    try:
        write_state(tmp_path / "a.state", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.state").stat().st_mode) == 0o600


@needs_root
def test_a_file_of_another_user_or_a_link_is_not_read(everybodys: Path) -> None:  # S13
    write_state(everybodys / "mine", 1)
    data = (everybodys / "mine").read_bytes()

    def by_mallory() -> None:
        (everybodys / "hers").write_bytes(data)
        (everybodys / "link").symlink_to("mine")
        os.mkfifo(everybodys / "pipe")

    as_user(MALLORY, by_mallory)
    for name in ("hers", "pipe"):
        with pytest.raises(FileNotTrusted):
            read_state(everybodys / name)
    with pytest.raises(OSError, match="symbolic link"):
        read_state(everybodys / "link")
    (everybodys / "mine").chmod(0o666)
    with pytest.raises(FileNotTrusted, match="must not let other users write"):
        read_state(everybodys / "mine")


def test_only_what_comes_back_as_it_was_counts_as_plain() -> None:
    class Named(NamedTuple):
        a: int

    plain = [None, True, 1, 2.5, float("nan"), "x", b"x", np.arange(3), [1, (2,)], {"a": {"b": []}}, {}]
    others = [Named(1), {1: 2}, {1}, np.float32(1), np.array([{}]), np.ma.array([1]), object(), bytearray(b"x"), [len]]
    assert all(map(is_plain, plain)) and not any(map(is_plain, others))


def test_a_full_disk_leaves_the_file_from_before_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    write_state(path, "old")
    code = (
        "import resource, sys, pathlib, numpy as np\n"
        "from ropewalk.population.state_file import write_state\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: write_state(pathlib.Path(sys.argv[1]), np.ones(100_000))\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert read_state(path) == "old" and os.listdir(tmp_path) == ["a.state"]


def test_a_state_that_was_written_long_ago_is_read(tmp_path: Path) -> None:
    """Nothing in this folder may ever be written anew: others have such files."""
    path = tmp_path / "a.state"  # a copy, because a checkout may let others write to its files
    path.write_bytes(WRITTEN_LONG_AGO.read_bytes())
    path.chmod(0o600)
    tree = read_state(path)
    centre, order = tree.pop("centre"), tree.pop("order")
    assert centre.dtype == np.float32 and centre.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert order.dtype == np.int64 and order.tolist() == [[0, 1], [2, 3]]
    assert tree == {
        "generation": 7,
        "fitness": [0.5, -math.inf, None, True],
        "name": "\N{GREEK SMALL LETTER PI}",
        "pair": (1, "two"),
        "log": b"\x00\xff",
        "empty": {},
    }
