"""Two nodes that talk.

python examples/hello.py                          each node is a process
ropewalk run examples/hello.py --mode threads     each node is a thread of this process, for a debugger

visitor ──── greet("Ada") ───▶ greeter
        ◀─── "Hello, Ada!" ───
"""

from __future__ import annotations

from collections.abc import Sequence

import ropewalk as rw


class Greeter:
    """An ordinary object: it knows nothing of processes, and a test may use it as it is."""

    def __init__(self, word: str) -> None:
        self._word, self._num_guests = word, 0

    def greet(self, name: str) -> str:
        self._num_guests += 1  # calls to one object run one at a time, so this needs no lock
        return f"{self._word}, {name}! You are guest number {self._num_guests}."


def visit(greeter: Greeter, names: Sequence[str]) -> None:
    """Inside a node a handle has become a client: called, and typed, like the object itself."""
    for name in names:
        print(greeter.greet(name))


def main(mode: rw.Mode | None = None) -> None:
    program = rw.Program("hello")
    greeter = program.add(rw.Service(Greeter, "Hello"), name="greeter")  # a handle; nothing runs yet
    program.add(rw.Worker(visit, greeter, ["Ada", "Grace", "Barbara"]), name="visitor")  # passing it is the edge
    program.launch(mode=mode).wait()  # until the visitor has finished; then the greeter is stopped


if __name__ == "__main__":
    main()
