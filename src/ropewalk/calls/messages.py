"""What the two ends of a call say to each other.

caller ──▶ server    Call OnceCall Cancel More Taken TakenPageHere
server ──▶ caller    Answer Several Raised StreamItem StreamEnd Gone

The parts of a `Call` are the pickled arguments (none if there are none), those of an `Answer` or `StreamItem` the
pickled value, each with its out-of-band buffers. Where they are large and both ends
are on one host, they travel as a memory file instead, and `shared` says how they
lie in it.
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
    """How many calls deep it is: 1 if it was made outside of any call."""


class Call(msgspec.Struct, tag=1, array_like=True):
    """Call a method; answered by `Answer`, `Raised` or `Gone`, and for a stream by `StreamItem`s and a `StreamEnd`."""

    number: int
    target: int
    """Which of the objects that the server serves."""
    method: str
    keywords: bool
    """Whether the parts hold (args, kwargs), and not args alone."""
    timeout_s: float | None
    """Seconds that are left until nobody wants the answer any more."""
    chain: tuple[Origin, ...]
    """The calls in which this one was made; the last one made it. In a batch, those of all its calls."""
    shared: Lengths
    credit: int
    """Of a stream: so many items may be sent before `More`. Of an item: one more than the place of a lot, in which the
    answer may let its caller send so many further ones without asking."""


class OnceCall(Call, tag=6, array_like=True, kw_only=True):
    """A call that is to be done once, though it may be sent several times."""

    stream: str
    """The caller's name for itself, with its generation, such as "actor.3#1"."""
    sequence: int
    """Counts the calls of the stream to this object, from 1."""
    acked: int
    """The caller has the answers to all calls of the stream up to this one, or waits for them no longer."""
    also_acked: list[int] = []
    """And to these."""


class Cancel(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Nobody wants the answer any more."""

    number: int


class More(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """So many more items of a stream may be sent."""

    number: int
    credit: int


class Taken(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """A value that was lent has arrived; from now on it is the caller's."""

    number: int


class Begun(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """Of the values of an object that were lent together, some have been begun, of which it wanted to hear."""

    target: int


class TakenPageHere(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Which of the values that were lent have arrived stands in this memory file (`transport/ack_page.py`)."""


class Answer(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """What a call returned; no parts for None."""

    number: int
    shared: Lengths
    lent: bool = False
    """Whether it counts as taken only when the server hears so: by `Taken`, or in the shared page."""


class Raised(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """What a call raised."""

    number: int
    failure: Failure


class StreamItem(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """What a stream yielded."""

    number: int
    shared: Lengths


class StreamEnd(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """A stream is over."""

    number: int


class Gone(msgspec.Struct, tag=14, array_like=True, frozen=True):
    """The call did not run: its object is not (or no longer) served here."""

    number: int
    reason: str


class Several(msgspec.Struct, tag=15, array_like=True, frozen=True):
    """What a call is lent, in the first part, and what its caller may take without calling again, one in each part."""

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
