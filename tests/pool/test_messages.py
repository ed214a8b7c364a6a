"""What pool and workers say to each other arrives as it was said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.pool.messages import (
    ENCODE,
    POOL,
    BeginWorker,
    ConstantMessage,
    Forget,
    Setup,
    SetupFailed,
    Skipped,
    StopWorker,
    Tasks,
    TasksDone,
    UnitHeader,
    WorkerReady,
)
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.failures import FAILURE_DECODER, Failure

NUMBERS = st.integers(0, 2**63 - 1)
LENGTHS = st.lists(NUMBERS, max_size=4).map(tuple)
TEXTS = st.text(max_size=20)
FAILURES = st.builds(
    Failure,
    type_name=TEXTS,
    message=TEXTS,
    traceback=TEXTS,
    pickle=st.binary(max_size=20),
    buffers=st.lists(st.binary(max_size=9), max_size=3),
)
UNITS = st.builds(
    UnitHeader,
    seq=NUMBERS,
    code=NUMBERS,
    kind=st.integers(0, 3),
    start=NUMBERS,
    stop=NUMBERS,
    first_index=NUMBERS,
    seed=st.integers(0, 2**64 - 1),  # the whole of a seed: msgpack's own limit
    span=st.none() | st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3),
    num_parts=NUMBERS,
    shared=LENGTHS,
    patient=st.booleans(),
)
MESSAGES: list[st.SearchStrategy[Any]] = [
    st.builds(
        BeginWorker,
        main=st.binary(max_size=20),
        authkey=st.binary(max_size=20),
        identity=LENGTHS,
        parent_name=TEXTS,
        parent_pid=NUMBERS,
    ),
    st.builds(Setup, initializer=TEXTS, arguments=TEXTS),
    st.builds(
        ConstantMessage,
        number=NUMBERS,
        id=TEXTS,
        blob=st.none() | st.builds(BlobRef, id=TEXTS, lengths=LENGTHS),
        writable=st.booleans(),
    ),
    st.builds(Tasks, units=st.lists(UNITS, max_size=5)),
    st.builds(Forget, numbers=st.lists(NUMBERS, max_size=4)),
    st.just(StopWorker()),
    st.just(WorkerReady()),
    st.builds(SetupFailed, failure=FAILURES),
    st.builds(
        TasksDone,
        first=NUMBERS,
        elapsed_ns=NUMBERS,
        values=st.lists(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.binary()
        ),
        nested=st.dictionaries(st.integers(0, 2047), st.integers(4, 5), max_size=3),
        shared=LENGTHS,
    ),
    st.builds(Skipped, first=NUMBERS, count=NUMBERS),
]


@given(message=st.one_of(MESSAGES))
def test_messages_come_back_as_they_were(message: Any) -> None:
    back = POOL.decode(POOL.encode(message))
    assert back == message and type(back) is type(message)


@given(failure=FAILURES)
def test_failures_come_back_as_they_were(failure: Failure) -> None:
    assert FAILURE_DECODER.decode(ENCODE(failure)) == failure


@pytest.mark.parametrize(
    "wrong", [b"", b"\xc1", b"\x90", b"\x91\x63", ENCODE([3, "not a list of units"]), ENCODE([12, 1])]
)
def test_what_is_no_message_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        POOL.decode(wrong)
