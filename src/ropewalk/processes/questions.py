"""Questions of a process to the agent of its host: a link for one question and its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ropewalk.errors import LinkClosed
from ropewalk.processes.messages import CONTROL, NeedToken, TokenIs
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import DIAL_S, dial, receive_in_time
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.joining import new_ticket

if TYPE_CHECKING:
    from ropewalk.processes.bootstrap import ProcessContext

_Answer = TypeVar("_Answer", bound=msgspec.Struct)


def ask_agent(
    agent_address: str,
    credentials: Credentials,
    question: msgspec.Struct,
    answer: type[_Answer] | tuple[type[_Answer], ...],
    timeout_s: float | None = DIAL_S,
) -> _Answer:
    """Ask the agent of this host, and wait for its answer.

    Args:
        agent_address: address of the agent.
        credentials: credentials of this process.
        question: the question.
        answer: the types of messages that may answer it; others are ignored.
        timeout_s: timeout in seconds; None waits without a limit.

    Raises:
        TransportError: the agent is gone, or does not answer in time.
    """
    deadline = time.monotonic() + (DIAL_S if timeout_s is None else timeout_s)
    link = dial(parse_address(agent_address), credentials, CONTROL, timeout_s=deadline - time.monotonic())
    try:
        link.send(question)
        while True:
            try:
                received = link.receive() if timeout_s is None else receive_in_time(link, deadline)
            except TimeoutError as error:
                words = f"the agent of this host has not answered {type(question).__name__} for {timeout_s:g} s"
                raise LinkClosed(words) from error
            if received is None:
                raise LinkClosed("the agent of this host is gone")
            if isinstance(received.message, answer):
                return received.message
    finally:
        link.close()


def tokens_through_agent(context: ProcessContext) -> Callable[[str], str]:
    """Return a function that finds the token by which a process authenticates to the service at an address."""

    def find(address: str) -> str:
        question = NeedToken(new_ticket(), address)
        found = ask_agent(context.agent_address, context.credentials, question, TokenIs)
        if found.problem:
            raise LinkClosed(found.problem)
        return found.token

    return find
