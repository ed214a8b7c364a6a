"""Nodes as bytes: what a host is sent is all that it needs, in the order in which it takes it."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ropewalk.errors import NotPicklable
from ropewalk.program.messages import NodeStart, StartUnit, UnitName
from ropewalk.program.node import NodeSpec
from ropewalk.program.node_process import load_nodes
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.packing import FrozenBytes, PackedProgram
from ropewalk.transport.blobs import BlobRef, open_parts
from ropewalk.transport.link import Received
from tests.program.recording import service, work, worker


def start_of(packed: PackedProgram, specs: list[NodeSpec]) -> StartUnit:
    return StartUnit(
        name=UnitName(specs[0].unit, 0, 0),
        run_id="run-1",
        program="demo",
        host_id="host",
        key="key",
        checkpoints="",
        main=packed.main,
        definitions=packed.definitions,
        nodes=[NodeStart(spec.name, 1, 0, None, packed.num_buffers(spec.name)) for spec in specs],
        blobs={at: bundle.blob for at, bundle in enumerate(bundles_of(packed, specs)) if bundle.blob},
    )


def bundles_of(packed: PackedProgram, specs: list[NodeSpec]) -> list[FrozenBytes]:
    return packed.bundles([spec.name for spec in specs])


def parts_of(bundles: list[FrozenBytes]) -> list[Any]:
    """What is sent with the message."""
    return [bytes(part) for bundle in bundles for part in bundle.parts]


class Host:
    """Has the blobs of some bundles."""

    def __init__(self, bundles: list[FrozenBytes]) -> None:
        self._constants = {bundle.blob: bundle.constant for bundle in bundles if bundle.blob and bundle.constant}

    def parts(self, ref: BlobRef) -> list[memoryview]:
        return open_parts(os.dup(self._constants[ref].fd), ref.lengths, writable=True)


@pytest.mark.parametrize("size", [1_000, 100_000], ids=["with the message", "once for each host"])
def test_the_nodes_of_one_unit_arrive_as_they_were_packed_and_can_write_to_their_arguments(size: int) -> None:
    arrays = [np.arange(size), np.ones((300, 300))]
    sums = [array.sum() for array in arrays]
    specs = [
        worker("left"),
        service("store"),
        NodeSpec(name="right", node=Worker(work, *arrays), unit="right", gang="right"),
    ]
    packed = PackedProgram(specs)
    assert [packed.num_buffers(spec.name) for spec in specs] == [0, 0, 2]
    for array in arrays:
        array[:] = 0  # what the launcher does to them afterwards concerns nobody, not even those who are started later
    wanted = [specs[2], specs[0]]
    bundles = bundles_of(packed, wanted)
    host = Host(bundles)
    main = sys.modules["__main__"]
    try:
        for _ in range(2):
            received = Received(None, parts_of(bundles))
            nodes: list[Any] = load_nodes(start_of(packed, wanted), received, host.parts)
            right, left = nodes
            assert left.label == "work" and [array.sum() for array in right.args] == sums
            right.args[0][0] += 7
            assert right.args[0].sum() == sums[0] + 7, "a node owns its arguments, and others do not see this"
    finally:
        sys.modules["__main__"] = main
        packed.close()


def test_large_arguments_lie_in_a_memory_file_until_the_program_is_over_and_equal_ones_only_once() -> None:
    large = np.ones(100_000)
    specs = [NodeSpec(name=name, node=Worker(work, large), unit=name, gang=name) for name in "ab"]
    gc.collect()  # what earlier tests have left may have descriptors
    before = len(os.listdir("/proc/self/fd"))
    packed = PackedProgram([*specs, worker("small")])
    definitions, a, b = bundles_of(packed, specs)
    assert a.blob and a.blob == b.blob and not a.parts and not definitions.blob
    assert a.constant and b.constant and os.path.sameopenfile(a.constant.fd, b.constant.fd)
    packed.close()
    packed.close()
    with pytest.raises(NotPicklable):
        PackedProgram([*specs, NodeSpec(name="c", node=Worker(work, threading.Lock()), unit="c", gang="c")])
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_sent_is_told_with_the_name_of_its_node() -> None:
    spec = NodeSpec(name="broken", node=Worker(work, threading.Lock()), unit="broken", gang="broken")
    with pytest.raises(NotPicklable, match="broken"):
        PackedProgram([worker("fine"), spec])


SCRIPT = '''
import pickle, sys
import numpy as np
import ropewalk as rw
from ropewalk.program.packing import PackedProgram
from tests.program.test_packing import bundles_of, parts_of, start_of

FACTOR = 3

class Base:
    """Made in a script."""
    table = np.arange(50_000)

    def get(self):
        return FACTOR

class Derived(Base):
    other: "Derived"

def helper(store):
    return Derived().get() + store

if __name__ == "__main__":
    program = rw.Program("script")
    program.add(rw.Service(Derived), name="store")
    program.add(rw.Worker(helper, 4), name="worker")
    packed = PackedProgram(program.specs)
    (spec,) = [spec for spec in program.specs if spec.name == sys.argv[1]]
    start = start_of(packed, [spec])
    parts = parts_of(bundles_of(packed, [spec]))
    with open(sys.argv[2], "wb") as file:
        pickle.dump((start.main, start.definitions, start.nodes, parts), file)
'''

FAR_SIDE = """
import pickle, sys
from ropewalk.program.messages import StartUnit, UnitName
from ropewalk.program.node_process import load_nodes
from ropewalk.transport.link import Received

with open(sys.argv[1], "rb") as file:
    main, definitions, nodes, parts = pickle.load(file)
start = StartUnit(UnitName("u", 0, 0), "", "", "", "", "", main, definitions, nodes)
(node,) = load_nodes(start, Received(None, parts), None)
made = getattr(node, "cls", None) or node.function
import __main__
print(made.__module__, made is getattr(__main__, made.__name__), __main__.FACTOR, __main__.__file__)
print(made(*node.args) if made.__name__ == "helper" else (made().get(), int(made.table.sum()), made.__mro__[1].__doc__))
"""


@pytest.mark.parametrize(("name", "words"), [("store", "(3, 1249975000, 'Made in a script.')"), ("worker", "7")])
def test_classes_and_functions_of_a_script_arrive_with_all_that_they_refer_to(
    name: str, words: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    sent = tmp_path / "sent"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, str(script), name, str(sent)], check=True, env=environment, timeout=200)
    far = subprocess.run(
        [sys.executable, "-c", FAR_SIDE, str(sent)], check=True, env=environment, timeout=200, stdout=subprocess.PIPE
    )
    first, second = far.stdout.decode().splitlines()
    assert first == f"__main__ True 3 {script}"
    assert second == words
    assert msgspec.msgpack.decode(pickle.loads(sent.read_bytes())[0])["file"] == str(script)
