"""The rounds of one piece, event by event: what counts, what is taken back, and what each member is told."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.compressor import Round
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.compressors.none import NoCompression
from ropewalk.exchange.parameter_server.outcomes import Accepted, Behind, PullAnswer, ServerSettings
from ropewalk.exchange.parameter_server.piece_rounds import PieceRounds, PushedGradient
from ropewalk.exchange.parameter_server.pieces import bytes_of, tensor_of
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD

LAYOUT = Layout((BucketEntry("p", (3,), torch.float64),))
KEY = 7
RUBBISH = b"\xff\xff\xff\xff"

SUM = ServerSGD(1.0, reduction="sum")
DENSE = ServerSettings(NoCompression())
OWNER = ServerSettings(NoCompression(), optimizer=SUM)
MEMORY = ServerSettings(GDSEC(c=0, beta=0.5))
BOUNDED = ServerSettings(NoCompression(), staleness=1, optimizer=SUM)
FREE = ServerSettings(NoCompression(), staleness=None, optimizer=SUM)
FREE_MEMORY = ServerSettings(GDSEC(xi=0, beta=0.5), staleness=None, optimizer=SUM)


def flat(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def pushed(settings: ServerSettings, *values: float, samples: float = 1.0) -> PushedGradient:
    """What a member without any state pushes for this gradient."""
    said = settings.compressor.encoder(LAYOUT).encode(flat(*values), Round(0))
    return PushedGradient(said.data.tobytes(), samples)


class Piece:
    """The rounds of one piece, with pushes and answers as numbers."""

    def __init__(self, settings: ServerSettings, *members: str, step: int = 0) -> None:
        self.settings = settings
        self.rounds = PieceRounds(KEY, LAYOUT, settings)
        assert self.rounds.form(members, step) is None
        if settings.optimizer:
            self.rounds.provide(flat(0, 0, 0))
        if settings.synchronous and settings.compressor.keeps_memory:
            for member in members:
                self.rounds.remember(member, None)

    def push(self, worker: str, step: int, *values: float, samples: float = 1.0) -> Accepted | Behind:
        return self.rounds.push(worker, step, pushed(self.settings, *values, samples=samples))

    def pull(self, step: int) -> list[float] | None:
        answer = self.rounds.pull(step)
        return None if answer is None else tensor_of(answer.data, torch.float64).tolist()

    def weights(self) -> list[float]:
        standing = self.rounds.standing(with_memory=False)
        assert standing is not None
        assert standing.weights is not None
        return tensor_of(standing.weights, torch.float64).tolist()


# Whole rounds


def test_a_round_is_complete_when_all_have_pushed_and_says_of_whom_it_is() -> None:
    piece = Piece(DENSE, "a", "b")
    rounds = piece.rounds
    assert (rounds.floor, rounds.settled, rounds.num_changes) == (0, -1, 0)
    assert piece.push("a", 0, 1, 2, 3, samples=2.0) == Accepted()
    assert rounds.pull(0) is None
    assert rounds.missing(0) == ["b"]
    assert (rounds.floor, rounds.num_changes) == (0, 0)
    piece.push("b", 0, 10, 20, 30, samples=3.0)
    assert rounds.pull(0) == PullAnswer(KEY, 0, 5.0, 2, bytes(bytes_of(flat(11, 22, 33))))
    assert rounds.pull(1) is None
    assert rounds.missing(0) == []
    assert (rounds.floor, rounds.settled, rounds.num_changes) == (1, -1, 1)


def test_a_round_counts_once_somebody_pushes_for_the_next() -> None:
    piece = Piece(OWNER, "a", "b")
    piece.push("a", 0, 1, 0, 0)
    piece.push("b", 0, 1, 0, 0)
    assert piece.pull(0) == [-2, 0, 0]
    assert piece.weights() == [0, 0, 0], "it may still be taken back"
    piece.push("b", 1, 0, 5, 0)
    assert piece.weights() == [-2, 0, 0]
    assert piece.rounds.settled == 0
    assert piece.pull(0) == [-2, 0, 0], "the other one still needs it"
    piece.push("a", 1, 0, 5, 0)
    assert piece.pull(1) == [-2, -10, 0]
    assert piece.pull(0) is None


def test_a_push_that_was_taken_already_changes_nothing() -> None:
    piece = Piece(DENSE, "a", "b")
    piece.push("a", 0, 1, 0, 0)
    assert piece.push("a", 0, 100, 0, 0) == Accepted()
    piece.push("b", 0, 1, 0, 0)
    assert piece.push("b", 0, 100, 0, 0) == Accepted()
    assert piece.pull(0) == [2, 0, 0]


def test_a_push_of_a_later_step_is_asked_for_from_the_first_that_is_lacking() -> None:
    """One that owns nothing needs none but the step before, which another member may still have to do."""
    owner, dense = Piece(OWNER, "a"), Piece(DENSE, "a")
    assert owner.push("a", 1, 1, 0, 0) == Behind(0)
    assert owner.push("a", 5, 1, 0, 0) == Behind(0)
    assert dense.push("a", 1, 1, 0, 0) == Behind(0)
    assert dense.push("a", 2, 1, 0, 0) == Behind(1)
    assert dense.push("a", 5, 1, 0, 0) == Behind(4)
    assert dense.rounds.clocks == {"a": 4}
    assert dense.push("a", 4, 1, 0, 0) == Accepted()
    assert dense.pull(4) == [1, 0, 0]


def test_a_message_that_cannot_be_decoded_is_waited_for_again() -> None:
    piece = Piece(MEMORY, "a", "b")
    piece.rounds.push("b", 0, PushedGradient(RUBBISH, 1.0))
    piece.push("a", 0, 1, 0, 0)
    assert piece.pull(0) is None
    assert piece.rounds.clocks == {"a": 1, "b": 0}
    assert list(piece.rounds.corrupt) == ["b"]
    assert "rank 1" in piece.rounds.corrupt["b"]
    assert piece.rounds.num_changes == 1, "its sender is told"
    piece.push("b", 0, 1, 0, 0)
    assert piece.rounds.corrupt == {}
    assert piece.pull(0) == [2, 0, 0]


def test_answers_may_be_messages_that_a_replica_of_the_decoder_reads() -> None:
    settings = ServerSettings(GDSEC(c=0, beta=0.5), sparse_answers=True)
    piece, replica, out = Piece(settings, "a", "b"), settings.compressor.decoder(LAYOUT), torch.empty(3).double()
    memory = flat(0, 0, 0)
    for step in range(3):
        piece.push("a", step, 1, 0, 4)
        piece.push("b", step, 0, 2, 4)
        answer = piece.rounds.pull(step)
        assert answer is not None
        replica.decode({0: memoryview(answer.data)}, out)
        replica.commit()
        said = flat(1, 2, 8)
        assert torch.equal(out, memory + said)
        memory = memory + 0.5 * said
    standing = piece.rounds.standing(with_memory=True)
    assert standing is not None
    assert standing.memory == bytes(bytes_of(flat(1, 2, 8))), "two rounds count, and the third is open"


def test_the_residual_of_a_leaver_does_not_change_the_type_of_a_sum() -> None:
    layout = Layout((BucketEntry("p", (3,), torch.bfloat16),))
    for settings in (DENSE, FREE):
        rounds = PieceRounds(KEY, layout, settings)
        rounds.form(["a", "b"], 0)
        rounds.provide(torch.zeros(3, dtype=torch.bfloat16))
        rounds.leave("b", 0, None, torch.ones(3))
        said = settings.compressor.encoder(layout).encode(torch.ones(3, dtype=torch.bfloat16), Round(0))
        rounds.push("a", 0, PushedGradient(said.data.tobytes(), 1.0))
        answer = rounds.pull(0)
        assert answer is not None
        sign = -1 if settings.optimizer else 1
        assert tensor_of(answer.data, torch.bfloat16).tolist() == [sign * 2] * 3


# Members


def test_other_members_begin_with_a_step_that_is_taken_back_or_with_the_one_after_it() -> None:
    for step, settled in ((0, -1), (1, 0)):
        piece = Piece(OWNER, "a", "b")
        piece.push("a", 0, 1, 0, 0)
        piece.push("b", 0, 2, 0, 0)
        assert piece.rounds.form(["a"], step) is None
        assert piece.rounds.settled == settled
        assert piece.rounds.clocks == {"a": step}
        assert piece.weights() == ([-3, 0, 0] if step else [0, 0, 0])
        assert (piece.pull(0) is None) == (step == 0)
        piece.push("a", step, 0, 5, 0)
        assert piece.pull(step) == ([-3, -5, 0] if step else [0, -5, 0])


def test_pushes_of_earlier_members_are_no_part_of_a_round() -> None:
    piece = Piece(MEMORY, "a", "b", "c")
    piece.push("c", 0, 100, 0, 0)
    piece.rounds.push("b", 0, PushedGradient(RUBBISH, 1.0))
    piece.push("a", 0, 1, 0, 0)
    assert list(piece.rounds.corrupt) == ["b"]
    piece.rounds.form(["a", "b"], 0)
    assert piece.rounds.corrupt == {}
    assert piece.rounds.awaits_memory
    for worker in ("a", "b"):
        piece.rounds.remember(worker, None)
        piece.push(worker, 0, 1, 0, 0)
    assert piece.pull(0) == [2, 0, 0]


def test_weights_that_lack_steps_ask_for_these_and_sums_do_not() -> None:
    for settings, outcome in ((OWNER, Behind(1)), (DENSE, None)):
        piece = Piece(settings, "a")
        piece.push("a", 0, 1, 0, 0)
        assert piece.rounds.form(["a"], 3) == outcome
        assert piece.rounds.clocks == {"a": 1 if outcome else 3}
        assert piece.rounds.settled == (0 if outcome else 2)
    assert Piece(OWNER, "a").rounds.form(["a"], 0) is None
    fresh = PieceRounds(KEY, LAYOUT, OWNER)
    assert fresh.form(["a"], 40) is None, "one that has begun nothing lacks nothing"
    assert (fresh.settled, fresh.clocks) == (39, {"a": 40})
    assert fresh.form(["a"], 40) is None
    assert fresh.form(["a"], 41) == Behind(40)


def test_where_rounds_are_not_whole_those_who_stay_keep_their_steps() -> None:
    piece = Piece(FREE, "a", "b")
    piece.push("a", 0, 1, 0, 0)
    piece.push("a", 1, 1, 0, 0)
    assert piece.rounds.form(["a", "c"], 7) is None
    assert piece.rounds.clocks == {"a": 2, "c": 7}
    piece.rounds.add("d", 4)
    piece.rounds.add("c", 9)
    assert piece.rounds.clocks == {"a": 2, "c": 7, "d": 4}
    assert piece.weights() == [-2, 0, 0]


def test_a_member_that_is_dropped_has_pushed_nothing() -> None:
    piece = Piece(DENSE, "a", "b", "c")
    piece.push("b", 0, 100, 0, 0)
    piece.push("a", 0, 1, 0, 0)
    piece.rounds.drop("b")
    assert piece.pull(0) is None
    piece.push("c", 0, 1, 0, 0)
    assert piece.pull(0) == [2, 0, 0]
    piece.rounds.drop("c")
    assert piece.pull(0) == [1, 0, 0], "the round is open, and made again of those who are left"
    piece.rounds.drop("a")
    assert piece.rounds.clocks == {}
    assert piece.rounds.floor == 0
    assert piece.pull(0) is None


def test_the_last_round_before_a_leave_counts_and_the_next_is_done_without_the_leaver() -> None:
    piece = Piece(OWNER, "a", "b")
    piece.push("a", 0, 1, 0, 0)
    piece.push("b", 0, 1, 0, 0)
    piece.rounds.leave("nobody", 1, None, flat(100, 0, 0))
    assert piece.rounds.settled == -1
    piece.rounds.leave("b", 1, None, flat(0, 0, 8))
    assert piece.rounds.settled == 0
    assert piece.weights() == [-2, 0, 0]
    piece.push("a", 1, 0, 1, 0)
    assert piece.pull(1) == [-2, -1, -8]
    piece.push("a", 2, 0, 1, 0)
    assert piece.pull(2) == [-2, -2, -8], "a residual is added once"


def test_one_that_leaves_before_a_round_counts_has_no_part_in_it() -> None:
    piece = Piece(OWNER, "a", "b")
    piece.push("a", 0, 1, 0, 0)
    piece.push("b", 0, 1, 0, 0)
    piece.rounds.leave("b", 0, None, None)
    assert piece.rounds.settled == -1
    assert piece.pull(0) == [-1, 0, 0]


def test_residuals_of_several_leavers_are_all_in_the_next_sum() -> None:
    for settings in (DENSE, FREE):
        piece = Piece(settings, "a", "b", "c")
        piece.rounds.leave("b", 0, None, flat(0, 1, 0))
        piece.rounds.leave("c", 0, None, flat(0, 2, 0))
        piece.push("a", 0, 1, 0, 0)
        assert piece.pull(0) == ([-1, -3, 0] if settings.optimizer else [1, 3, 0])
        piece.push("a", 1, 1, 0, 0)
        assert piece.pull(1) == ([-2, -3, 0] if settings.optimizer else [1, 0, 0])


def test_the_memory_of_a_leaver_is_taken_out_of_the_sum() -> None:
    piece = Piece(MEMORY, "a", "b")
    piece.rounds.remember("a", flat(1, 1, 1))
    piece.rounds.remember("b", flat(0, 0, 4))
    piece.rounds.leave("b", 0, flat(0, 0, 4), None)
    piece.push("a", 0, 0, 2, 0)
    assert piece.pull(0) == [1, 3, 1]


# Memories


def test_a_round_waits_for_the_memories_of_all_members() -> None:
    piece = Piece(MEMORY, "a", "b")
    piece.rounds.form(["a", "b"], 0)
    assert piece.rounds.awaits_memory
    piece.push("a", 0, 1, 0, 0)
    piece.push("b", 0, 1, 0, 0)
    piece.rounds.remember("a", flat(0, 0, 3))
    assert piece.rounds.awaits_memory
    assert piece.pull(0) is None
    assert piece.rounds.standing(with_memory=True) is None
    assert piece.rounds.standing(with_memory=False) is not None
    piece.rounds.remember("b", None)
    assert not piece.rounds.awaits_memory
    assert piece.pull(0) == [2, 0, 3]
    assert not Piece(DENSE, "a").rounds.awaits_memory


def test_memories_that_are_told_anew_replace_those_of_an_open_round() -> None:
    piece = Piece(MEMORY, "a", "b")
    piece.push("a", 0, 1, 0, 0)
    piece.push("b", 0, 1, 0, 0)
    assert piece.pull(0) == [2, 0, 0]
    piece.rounds.remember("b", flat(0, 5, 0))
    piece.rounds.remember("a", flat(0, 1, 0))
    assert piece.pull(0) == [2, 6, 0]


def test_where_rounds_are_not_whole_a_memory_is_that_of_one_member_and_ends_with_it() -> None:
    piece = Piece(FREE_MEMORY, "a", "b")
    piece.rounds.remember("a", flat(0, 0, 4))
    assert not piece.rounds.awaits_memory, "nobody waits for that of another member"
    piece.rounds.remember("b", None)
    assert not piece.rounds.awaits_memory
    piece.push("b", 0, 1, 0, 0)
    assert piece.weights() == [-1, 0, 0]
    piece.push("a", 0, 1, 0, 0)
    assert piece.weights() == [-2, 0, -4]
    piece.push("a", 1, 0, 0, 0)  # its memory is half of the first push by now
    assert piece.weights() == [-2.5, 0, -8]
    piece.rounds.drop("a")
    piece.rounds.add("a", 0)
    piece.push("a", 0, 0, 1, 0)
    assert piece.weights() == [-2.5, -1, -8]
    standing = piece.rounds.standing(with_memory=True)
    assert standing is not None
    assert standing.memory is None, "there is no sum of memories"


def test_what_a_joiner_takes_over_leaves_an_open_round_as_it_is() -> None:
    piece = Piece(MEMORY, "a", "b")
    for step in range(2):
        piece.push("a", step, 1, 0, 0)
        piece.push("b", step, 1, 0, 0)
    answer = piece.pull(1)
    standing = piece.rounds.standing(with_memory=True)
    assert standing is not None
    assert (standing.step, standing.weights, standing.velocity) == (0, None, None)
    assert standing.memory == bytes(bytes_of(flat(1, 0, 0)))
    assert piece.pull(1) == answer == [3, 0, 0]


# Weights


def test_pushes_wait_for_the_first_weights_and_later_ones_are_ignored() -> None:
    for settings in (OWNER, FREE):
        rounds = PieceRounds(KEY, LAYOUT, settings)
        rounds.form(["a"], 0)
        assert rounds.lacks_weights
        assert rounds.standing(with_memory=False) is None
        rounds.push("a", 0, pushed(settings, 1, 0, 0))
        assert rounds.pull(0) is None
        rounds.provide(flat(5, 5, 5))
        assert not rounds.lacks_weights
        rounds.provide(flat(100, 100, 100))
        answer = rounds.pull(0)
        assert answer is not None
        assert tensor_of(answer.data, torch.float64).tolist() == [4, 5, 5]
    sums = PieceRounds(KEY, LAYOUT, DENSE)
    assert not sums.lacks_weights
    sums.provide(flat(1, 1, 1))
    standing = sums.standing(with_memory=True)
    assert standing is not None
    assert (standing.weights, standing.memory) == (None, None)


def test_momentum_is_part_of_what_counts() -> None:
    settings = ServerSettings(NoCompression(), optimizer=ServerSGD(1.0, momentum=0.5, reduction="sum"))
    piece = Piece(settings, "a")
    for step in range(3):
        piece.push("a", step, 1, 0, 0)
    assert piece.pull(2) == [-(1 + 1.5 + 1.75), 0, 0]
    standing = piece.rounds.standing(with_memory=True)
    assert standing is not None
    assert standing.velocity == bytes(bytes_of(flat(1.5, 0, 0)))


# Rounds that are not whole


def test_with_a_bound_a_push_waits_until_the_slowest_is_near_enough() -> None:
    piece = Piece(BOUNDED, "slow", "fast")
    piece.push("fast", 0, 1, 0, 0)
    assert piece.pull(0) == [-1, 0, 0]
    assert piece.rounds.settled == 0
    piece.push("fast", 1, 1, 0, 0)
    assert piece.weights() == [-1, 0, 0]
    assert piece.pull(1) is None
    assert piece.rounds.missing(1) == ["slow"]
    assert piece.rounds.num_changes == 2
    piece.push("slow", 0, 0, 0, 4)
    assert piece.pull(1) == [-2, 0, -4]
    assert piece.rounds.settled == 1
    assert piece.rounds.missing(1) == []


def test_without_a_bound_nobody_waits() -> None:
    piece = Piece(FREE, "slow", "fast")
    for step in range(5):
        piece.push("fast", step, 1, 0, 0)
        assert piece.pull(step) == [-1 - step, 0, 0]
    piece.push("slow", 0, 0, 1, 0)
    assert piece.rounds.settled == 4, "a push of an earlier step does not turn it back"


def test_one_that_has_not_pushed_yet_counts_with_the_mean_of_samples() -> None:
    piece = Piece(FREE, "a", "b", "c")

    def told() -> tuple[float, int]:
        answer = piece.rounds.pull(0)
        assert answer is not None
        return answer.samples, answer.size

    assert told() == (0.0, 3)
    piece.push("a", 0, 1, 0, 0, samples=4.0)
    assert told() == (12.0, 3)
    piece.push("b", 0, 1, 0, 0, samples=2.0)
    assert told() == (9.0, 3)
    piece.rounds.drop("a")
    assert told() == (4.0, 2)
    piece.rounds.add("a", 0)
    assert told() == (6.0, 3)


def test_pushes_that_wait_are_applied_in_order_when_their_member_leaves() -> None:
    settings = ServerSettings(NoCompression(), staleness=1, optimizer=ServerSGD(1.0, momentum=0.5, reduction="sum"))
    piece = Piece(settings, "slow", "fast")
    for step, value in enumerate((0.0, 1.0, 4.0)):
        piece.push("fast", step, value, 0, 0)
    assert piece.weights() == [0, 0, 0]
    piece.rounds.leave("fast", 3, flat(9, 9, 9), None)
    assert piece.weights() == [-(1 + 4.5), 0, 0]
    piece.push("slow", 0, 0, 0, 0)
    assert piece.weights() == [-(1 + 4.5 + 2.25), 0, 0], "they were applied once"


def test_where_rounds_are_not_whole_a_bad_message_is_left_out_and_waited_for_again() -> None:
    settings = ServerSettings(GDSEC(xi=0, beta=0), staleness=1, optimizer=ServerSGD(1.0, momentum=0.5, reduction="sum"))
    piece = Piece(settings, "a", "b")
    piece.push("a", 0, 1, 0, 0)
    piece.rounds.push("a", 1, PushedGradient(RUBBISH, 1.0))
    piece.push("a", 2, 100, 0, 0)
    assert piece.rounds.corrupt == {}
    changes = piece.rounds.num_changes
    piece.push("b", 0, 0, 0, 0)  # now the step 1 of a counts
    assert piece.rounds.num_changes == changes + 2
    assert piece.rounds.clocks == {"a": 1, "b": 1}
    assert list(piece.rounds.corrupt) == ["a"]
    assert piece.weights() == [-1.5, 0, 0]
    assert piece.rounds.settled == 0, "a step of which nothing was heard does not count"
    piece.push("b", 1, 0, 0, 0)
    assert piece.weights() == [-1.75, 0, 0]
    piece.push("a", 1, 0, 1, 0)
    assert piece.rounds.corrupt == {}
    assert piece.weights() == [-1.875, -1, 0], "what it had pushed after the bad message is dropped too"
    assert piece.rounds.settled == 1


def test_a_bad_message_holds_back_nobody_else() -> None:
    piece = Piece(ServerSettings(GDSEC(xi=0, beta=0), staleness=1, optimizer=SUM), "a", "b", "slow")
    for worker in ("a", "b"):
        piece.push(worker, 0, 0, 0, 0)
    piece.rounds.push("a", 1, PushedGradient(RUBBISH, 1.0))
    piece.push("b", 1, 0, 1, 0)
    assert piece.weights() == [0, 0, 0]
    piece.push("slow", 0, 0, 0, 1)
    assert piece.rounds.clocks == {"a": 1, "b": 2, "slow": 1}
    assert piece.weights() == [0, -1, -1]


# States


Event = Callable[[PieceRounds], Any]


def push_of(worker: str, step: int, settings: ServerSettings, *values: float, samples: float = 1.0) -> Event:
    return lambda rounds: rounds.push(worker, step, pushed(settings, *values, samples=samples))


def a_life(settings: ServerSettings) -> Sequence[Event]:
    """Pushes, a bad message, a leave with its residual and its memory, and other members."""
    keeps = settings.compressor.keeps_memory
    events: list[Event] = [lambda rounds: rounds.form(["a", "b", "c"], 0)]
    events += [lambda rounds, who=who: rounds.remember(who, flat(1, 2, 3) if keeps else None) for who in "abc"]
    events += [push_of("a", 0, settings, 1, 0, 0), lambda rounds: rounds.provide(flat(5, 6, 7))]
    events += [push_of("b", 0, settings, 0, 1, 0, samples=3.0), push_of("a", 1, settings, 4, 0, 0)]
    events += [lambda rounds: rounds.push("c", 0, PushedGradient(RUBBISH, 1.0)), push_of("c", 0, settings, 0, 0, 1)]
    events += [push_of(who, step, settings, step, 2, 0) for step in (1, 2) for who in "cab"]
    events += [lambda rounds: rounds.leave("b", 3, flat(1, 2, 3) if keeps else None, flat(0, 0, 9))]
    events += [push_of(who, 3, settings, 0, 1, 1) for who in "ac"]
    events += [lambda rounds: rounds.form(["c", "d"], 4)]
    events += [lambda rounds, who=who: rounds.remember(who, flat(0, 0, 1) if keeps else None) for who in "cd"]
    return [*events, *(push_of(who, step, settings, 1, 1, 1) for step in (4, 5) for who in "cd")]


def seen(rounds: PieceRounds) -> list[object]:
    """All that can be asked for."""
    answers = [rounds.pull(step) for step in range(6)]
    standings = [rounds.standing(with_memory=asked) for asked in (False, True)]
    return [
        answers,
        standings,
        dict(rounds.clocks),
        dict(rounds.corrupt),
        rounds.settled,
        rounds.floor,
        rounds.awaits_memory,
    ]


MOMENTUM = ServerSGD(0.5, momentum=0.5)
LIVES = {
    "dense": DENSE,
    "owner": ServerSettings(NoCompression(), optimizer=MOMENTUM),
    "memory": MEMORY,
    "owner with memory": ServerSettings(GDSEC(xi=0, beta=0.5), optimizer=MOMENTUM),
    "bounded": ServerSettings(NoCompression(), staleness=1, optimizer=MOMENTUM),
    "bounded with memory": ServerSettings(GDSEC(xi=0, beta=0.5), staleness=1, optimizer=MOMENTUM),
    "free": ServerSettings(NoCompression(), staleness=None, optimizer=MOMENTUM),
    "free with memory": ServerSettings(GDSEC(xi=0, beta=0.5), staleness=None, optimizer=MOMENTUM),
}


@pytest.mark.parametrize("what", LIVES)
def test_a_piece_goes_on_from_its_state_at_any_moment(what: str) -> None:
    settings = LIVES[what]
    straight, hopping = (PieceRounds(KEY, LAYOUT, settings) for _ in range(2))
    for event in a_life(settings):
        assert event(hopping) == event(straight)
        saved = hopping.state_dict()
        assert seen(hopping) == seen(straight), "saving changes nothing"
        hopping = PieceRounds(KEY, LAYOUT, settings)
        hopping.load_state_dict(pickle.loads(pickle.dumps(saved)))
        assert seen(hopping) == seen(straight)
    assert straight.settled == (4 if settings.synchronous else 5)


@pytest.mark.parametrize("what", LIVES)
def test_what_follows_does_not_change_a_state_that_was_saved(what: str) -> None:
    settings = LIVES[what]
    events = a_life(settings)
    for num in range(0, len(events), 3):
        rounds = PieceRounds(KEY, LAYOUT, settings)
        for event in events[:num]:
            event(rounds)
        saved, loaded, again = rounds.state_dict(), *(PieceRounds(KEY, LAYOUT, settings) for _ in range(2))
        before = seen(rounds)
        loaded.load_state_dict(saved)
        for event in events[num:]:
            event(rounds)
            event(loaded)
        again.load_state_dict(saved)
        assert seen(again) == before
