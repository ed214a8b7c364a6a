"""The messages between the two ends of a call.

caller ──▶ server    Call OnceCall Cancel More Taken Begun TakenPageHere
server ──▶ caller    Answer Several Raised StreamItem StreamEnd Gone

The parts of a `Call` are the pickled arguments (none if there are none); the parts of an `Answer` or `StreamItem` are
the pickled value. Each comes with its out-of-band buffers. Large parts travel as a memory file if both ends are on one
host; `shared` then describes their layout in it.
"""

from __future__ import annotations

import msgspec

from ropewalk.transport.failures import Failure
from ropewalk.transport.link import Codec

Lengths = tuple[int, ...]


class Origin(msgspec.Struct, array_like=True, frozen=True):
    """One call of a chain of calls, each made while the one before it ran."""

    key: int
    """Unique among all calls that run."""
    label: str
    """Service and method, such as "learner.step"."""
    depth: int = 1
    """Depth of the call: 1 if it was made outside of any call."""


class Call(msgspec.Struct, tag=1, array_like=True):
    """Calls a method; answered by `Answer`, `Raised` or `Gone`, and for a stream by `StreamItem`s and a `StreamEnd`."""

    number: int
    target: int
    """The number of the object among those that the server serves."""
    method: str
    keywords: bool
    """Whether the parts hold (args, kwargs) rather than args alone."""
    timeout_s: float | None
    """Seconds after which the answer is no longer wanted."""
    chain: tuple[Origin, ...]
    """The calls that led to this one; the last one made it. For a batch, those of all its calls."""
    shared: Lengths
    credit: int
    """For a stream: number of items that may be sent before `More`. For an item: one more than the place of a lot, in
    which the answer may allow its caller to send a number of further items without asking."""


class OnceCall(Call, tag=6, array_like=True, kw_only=True):
    """A call that runs once, though it may be sent several times."""

    stream: str
    """The caller's name with its generation, such as "actor.3#1"."""
    sequence: int
    """Numbers the calls of the stream to this object, from 1."""
    acked: int
    """The caller has the answers to all calls of the stream up to this number, or no longer waits for them."""
    also_acked: list[int] = []
    """Further calls of which the same is true."""


class Cancel(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """The answer to a call is no longer wanted."""

    number: int


class More(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Lets a stream send more items."""

    number: int
    credit: int


class Taken(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """A lent value has arrived; from now on the caller owns it."""

    number: int


class Begun(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """Some of an object's values that were lent together have been begun, of which the object asked to be told."""

    target: int


class TakenPageHere(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """From now on this memory file (`transport/ack_page.py`) shows which lent values have arrived."""


class Answer(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """The value that a call returned; no parts for None."""

    number: int
    shared: Lengths
    lent: bool = False
    """Whether it counts as taken only when the server is told so, by `Taken` or in the shared page."""


class Raised(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """The exception that a call raised."""

    number: int
    failure: Failure


class StreamItem(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """A value that a stream yielded."""

    number: int
    shared: Lengths


class StreamEnd(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """The end of a stream."""

    number: int


class Gone(msgspec.Struct, tag=14, array_like=True, frozen=True):
    """The call did not run: its object is not, or no longer, served here."""

    number: int
    reason: str


class Several(msgspec.Struct, tag=15, array_like=True, frozen=True):
    """A lent value in the first part; each other part is a value that the caller may take without calling again."""

    number: int


CALLS = Codec(
    Call
    | OnceCall
    | Cancel
    | More
    | Taken
    | Begun
    | TakenPageHere
    | Answer
    | Several
    | Raised
    | StreamItem
    | StreamEnd
    | Gone
)
