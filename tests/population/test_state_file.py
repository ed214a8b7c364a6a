"""State files: what goes in comes out, damage is noticed, and a file is there whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ropewalk.errors import CheckpointCorrupt
from ropewalk.population.state_file import pack_state, read_state, unpack_state, write_state
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
