"""What workers tell of a test goes in one message, and arrives as the six that they sent."""

from __future__ import annotations

from typing import Any

from tests.workers import gathered, one_by_one

OF_ONE = ["logstart", *["testreport"] * 3, "logfinish", "runtest_protocol_complete"]


def test_what_is_told_of_a_test_goes_when_it_is_over_and_arrives_in_order() -> None:
    sent: list[tuple[str, dict[str, Any]]] = []
    arrived: list[Any] = []
    send, receive = gathered(lambda name, **what: sent.append((name, what))), one_by_one(arrived.append)

    def told(names: list[str], **what: Any) -> list[tuple[str, dict[str, Any]]]:
        for name in names:
            send(name, **what)
        return [(name, what) for name in names]

    expected = told(["workerready"], info=1)
    for number in range(2):
        expected += told(OF_ONE, nodeid=number)
    assert len(sent) == 3
    begun = told(OF_ONE[:2], nodeid=2)
    expected += told(["internal_error"], formatted_error="it broke")
    assert len(sent) == 4, "what is no part of a test waits for none"
    expected += begun + told(OF_ONE[2:], nodeid=2)
    for message in [*sent, None]:  # as the end of a worker
        receive(message)
    assert arrived == [*expected, None]
