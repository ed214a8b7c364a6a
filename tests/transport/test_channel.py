"""Channels: whole messages, descriptors, and what happens when the other end is gone."""

from __future__ import annotations

import os

import pytest

from ropewalk.errors import LinkClosed
from ropewalk.transport.channel import Channel


def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = Channel.pair()
    for message in (b"one", b"two" * 1000, b"3"):
        ours.send(message)
    assert [theirs.receive()[0] for _ in range(3)] == [b"one", b"two" * 1000, b"3"]
    ours.close()
    theirs.close()


def test_a_descriptor_arrives_as_one_of_the_receiver() -> None:
    ours, theirs = Channel.pair()
    reader, writer = os.pipe()
    ours.send(b"a pipe", [writer])
    os.close(writer)
    message, (fd,) = theirs.receive()
    os.write(fd, b"through")
    os.close(fd)
    assert (message, os.read(reader, 100)) == (b"a pipe", b"through")
    os.close(reader)
    ours.close()
    theirs.close()


def test_a_message_of_any_size_arrives_with_its_descriptors() -> None:
    # The kernel refuses one of more than 208 KiB, which was taken for the end of the other side.
    ours, theirs = Channel.pair()
    reader, writer = os.pipe()
    ours.send(b"y" * 5_000_000, [writer])
    ours.send(b"small")
    message, (fd,) = theirs.receive()
    assert message == b"y" * 5_000_000 and theirs.receive() == (b"small", [])
    os.write(fd, b"through")
    assert os.read(reader, 100) == b"through"
    for each in (fd, writer, reader):
        os.close(each)
    ours.close()
    theirs.close()


def send_for_ever(channel: Channel) -> None:
    while True:
        channel.send(b"x" * 1000)


def test_one_that_may_not_wait_says_that_it_would_have_to() -> None:
    ours, theirs = Channel.pair()
    theirs.wait_at_most(0)
    with pytest.raises(BlockingIOError):
        theirs.receive()
    ours.wait_at_most(0)
    with pytest.raises(BlockingIOError):
        send_for_ever(ours)
    ours.close()
    theirs.close()


def test_the_other_end_being_gone_is_an_empty_message_and_an_error_on_sending() -> None:
    ours, theirs = Channel.pair()
    ours.close()
    assert theirs.receive() == (b"", [])
    with pytest.raises(LinkClosed):
        theirs.send(b"anybody?")
    theirs.close()
    theirs.close()


def test_words_of_one_that_ended_with_messages_unread_are_heard() -> None:
    """The kernel says "connection reset" first, and the last replies of a killed fork server wait behind that."""
    ours, theirs = Channel.pair()
    ours.send(b"never read")
    theirs.send(b"last words")
    theirs.close()
    assert ours.receive()[0] == b"last words"
    assert ours.receive()[0] == b""
    ours.close()
