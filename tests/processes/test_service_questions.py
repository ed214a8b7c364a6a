"""Questions of processes go to the launcher, and answers back to the process that asked."""

from __future__ import annotations

from typing import Any

from ropewalk.processes.messages import NeedService, NeedToken, ServiceAt, TokenIs
from ropewalk.processes.service_questions import ServiceQuestions
from ropewalk.transport.tokens import token_for
from tests.processes.pretend_loop import START, PretendLink


class Asker(PretendLink):
    closed = False


def questions(told: list[Any], *peers: str) -> ServiceQuestions:
    processes: Any = {peer: type("process", (), {"start": START}) for peer in peers}
    return ServiceQuestions("0" * 64, "host-1", processes, told.append)


def link(peer: str) -> Any:
    return Asker(peer)


def test_an_answer_goes_to_the_process_that_asked_and_once() -> None:
    told: list[Any] = []
    asked, first, second = questions(told), link("1"), link("2")
    asked.need_service(first, NeedService("ticket", "m:f"))
    assert told == [NeedService("ticket", "m:f")]
    asked.need_service(second, NeedService("ticket", "m:f"))
    assert len(told) == 1, "the ticket of another process"
    for _ in range(2):
        asked.answered(ServiceAt("ticket", "unix:///a", "p"))
    assert first.sent == [ServiceAt("ticket", "unix:///a", "p")]
    assert second.sent == []


def test_a_ticket_is_free_again_when_its_process_is_gone() -> None:
    told: list[Any] = []
    asked, first, second = questions(told), link("1"), link("2")
    asked.need_service(first, NeedService("ticket", "m:f"))
    first.closed = True
    asked.need_service(second, NeedService("ticket", "m:f"))
    assert len(told) == 2


def test_a_token_for_a_service_of_this_host_is_made_here() -> None:
    told: list[Any] = []
    address = "at:host-1|unix:/s"
    caller = link("1")
    questions(told, "1").need_token(caller, NeedToken("ticket", address, ""))
    assert told == []
    assert caller.sent == [TokenIs("ticket", token_for("0" * 64, address, "1", ""))]


def test_a_token_for_another_host_is_asked_for_in_the_name_that_the_link_has_proved() -> None:
    told: list[Any] = []
    asked, caller = questions(told, "1"), link("1")
    asked.need_token(caller, NeedToken("ticket", "at:host-2|unix:/s", "pretended"))
    (need,) = told
    assert need.id == "1"
    asked.answered(TokenIs("ticket", "token"))
    assert caller.sent == [TokenIs("ticket", "token")]


def test_a_process_that_has_ended_gets_no_token() -> None:
    told: list[Any] = []
    caller = link("1")
    questions(told).need_token(caller, NeedToken("ticket", "at:host-1|unix:/s", ""))
    assert (told, caller.sent) == ([], [])


def test_an_address_that_cannot_be_read_is_answered_with_the_problem() -> None:
    told: list[Any] = []
    caller = link("1")
    questions(told, "1").need_token(caller, NeedToken("ticket", "nonsense", ""))
    (answer,) = caller.sent
    assert answer.token == ""
    assert "nonsense" in answer.problem
