"""What every compressor has to do, as a suite that any compressor can be put through.

    class TestMine(CompressorConformance):          # pytest runs its methods; pytest is not needed to import this
        def make_compressor(self) -> Compressor:
            return Mine()

Three members with different gradients go through some rounds, with buckets of several parameters, of one, and of one
component, in float32, float64 and bfloat16. The laws are those of `exchange.compressors.compressor`.
"""

from __future__ import annotations

import contextlib
import pickle
import unittest
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, MessageCorrupt
from ropewalk.exchange.buckets import Entry, Layout
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Round, SummableEncoder
from ropewalk.exchange.compressors.error_feedback import ErrorFeedback

NUM_MEMBERS = 3
_SAMPLES = (1.0, 2.0, 0.5)

#: How far sums may be off for rounding, against the largest magnitude that was summed.
_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class CompressorConformance:
    """The suite. Subclass it, say how your compressor is made, and let pytest or a loop over `all_tests()` run it."""

    #: Of the gradients.
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.bfloat16)
    #: Shapes of the parameters of each bucket; the first is tried in every dtype, the others in float32.
    buckets: tuple[tuple[tuple[int, ...], ...], ...] = (((12, 10), (10,), (), (4, 3, 3, 3)), ((9,),), ((),))
    #: Rounds that are gone through.
    num_rounds: int = 4

    def make_compressor(self) -> Compressor:
        """A compressor as your users make it."""
        raise NotImplementedError("say how your compressor is made: override make_compressor()")

    @classmethod
    def all_tests(cls) -> unittest.TestSuite:
        """The suite for unittest, for where pytest is not at hand."""
        names = [name for name in dir(cls) if name.startswith("test_")]
        return unittest.TestSuite(unittest.FunctionTestCase(getattr(cls(), name)) for name in names)

    # --- messages -----------------------------------------------------------------------------------------------------

    def test_messages_say_what_they_cost(self) -> None:
        """`bits`, `layers` and `num_values` are those of the bytes that are sent."""
        for team in self._teams():
            for _ in range(self.num_rounds):
                for rank, encoder in enumerate(team.encoders):
                    message = encoder.encode(team.gradients[rank], team.at(rank))
                    assert message.data.dtype == np.uint8 and message.data.ndim == 1
                    assert message.bits == 8 * message.data.size
                    assert sum(message.layers.values()) == message.data.size, (
                        f"{dict(message.layers)} of {message.bits}"
                    )
                    assert set(message.layers) <= set(team.layout.names)
                    assert 0 <= message.num_values <= team.layout.numel
                    assert min(message.layers.values(), default=0) >= 0
                    encoder.abort()
                team.play()

    def test_who_has_nothing_to_say_costs_nothing(self) -> None:
        """Without samples while nothing is kept, and in rounds without it, a member sends no byte."""
        for team in self._teams():
            nothing = torch.zeros_like(team.gradients[0])
            first = team.encoders[0].encode(nothing, team.at(0, samples=0.0))
            team.abort()
            team.play()
            later = team.encoders[0].encode(team.gradients[0], team.at(0, participates=False))
            for message in (first, later):
                assert not message.data.size and not message.layers and not message.num_values

    def test_zero_gradients_say_zero(self) -> None:
        """What nobody has is not made up."""
        for team in self._teams():
            team.gradients = [torch.zeros_like(gradient) for gradient in team.gradients]
            assert not team.play().any()

    def test_a_gradient_is_not_changed(self) -> None:
        """Neither gradients nor what was applied are written to."""
        for team in self._teams():
            for _ in range(self.num_rounds):
                before = [gradient.clone() for gradient in team.gradients]
                applied = None if team.applied is None else team.applied.clone()
                for rank, encoder in enumerate(team.encoders):
                    encoder.encode(team.gradients[rank], team.at(rank))
                    encoder.abort()
                    encoder.whole(team.gradients[rank], team.at(rank))
                    encoder.abort()
                assert all(map(_same, before, team.gradients)) and _same(applied, team.applied)
                team.play()

    # --- two phases ---------------------------------------------------------------------------------------------------

    def test_a_round_that_was_taken_back_can_be_repeated(self) -> None:
        """Encoding and decoding change no state; after an abort the same comes out again."""
        for team in self._teams():
            for _ in range(self.num_rounds):
                states = team.states()
                messages, out = team.encode(), torch.empty_like(team.gradients[0])
                team.decoder.decode(messages, out)
                first = out.clone()
                assert _equal_states(states, team.states()), "state has changed before the commit"
                team.abort()
                team.abort()
                assert _equal_states(states, team.states()), "state has changed by an abort"
                assert team.encode() == messages, "after an abort other bytes are sent"
                team.decoder.decode(messages, out)
                assert _same(first, out), "after an abort the same bytes say something else"
                team.abort()
                team.play()

    def test_a_round_is_settled_before_the_next(self) -> None:
        """A second `encode` without commit or abort is an error, and changes nothing."""
        for team in self._teams():
            messages = team.encode()
            try:
                team.encode()
            except RuntimeError:
                team.abort()
                assert team.encode() == messages
            else:
                raise AssertionError("two rounds were begun at the same time")

    # --- decoders -----------------------------------------------------------------------------------------------------

    def test_replicas_of_the_decoder_compute_the_same_bits(self) -> None:
        """In whatever order messages arrive, and whether or not silent members are listed."""
        for team in self._teams():
            replica = team.compressor.decoder(team.layout)
            for step in range(self.num_rounds):
                quiet = step % NUM_MEMBERS if step else -1
                messages = team.encode(quiet)
                one, other = (torch.full_like(team.gradients[0], 7) for _ in range(2))
                team.decoder.decode(messages, one)
                shuffled = {rank: messages[rank] for rank in reversed(messages) if messages[rank]}
                replica.decode({rank: memoryview(data) for rank, data in shuffled.items()}, other)
                assert _same(one, other), "replicas of the decoder differ"
                replica.commit()
                team.commit(one)

    def test_corrupt_bytes_are_refused_or_read(self) -> None:
        """Never another error than MessageCorrupt with the rank, and nothing of them stays after an abort."""
        for team in self._teams(torch.float32):
            team.play()
            messages = team.encode()
            expected, out = (torch.empty_like(team.gradients[0]) for _ in range(2))
            team.decoder.decode(messages, expected)
            team.decoder.abort()
            for corrupt in _damaged(bytes(messages[1])):
                refusal = _refusal(team.decoder, {**messages, 1: memoryview(corrupt)}, out)
                assert refusal is None or refusal.rank == 1, f"{refusal} does not say that it is of rank 1"
                team.decoder.abort()
            team.decoder.decode(messages, out)
            assert _same(expected, out), "a corrupt message has left something behind"

    # --- state --------------------------------------------------------------------------------------------------------

    def test_state_goes_by_parameter(self) -> None:
        """Saved, taken apart by parameter and put together again it goes on as if nothing had been."""
        for team in self._teams():
            for _ in range(self.num_rounds):
                team.play()
            other = team.through_single_parameters()
            assert _equal_states(team.states(), other.states())
            for _ in range(2):
                assert team.encode() == other.encode()
                team.abort()
                other.abort()
                assert _same(team.play(), other.play())

    def test_state_is_a_copy(self) -> None:
        """What was saved does not change with the rounds that follow."""
        for team in self._teams():
            team.play()
            states = team.states()
            copies = _copied(states)
            team.play()
            assert _equal_states(states, copies)

    def test_the_configuration_says_everything(self) -> None:
        """A copy from another process sends the same bytes: by seed, step and rank, and nothing else."""
        compressor = self.make_compressor()
        copy = _copied(compressor)
        assert copy == compressor and hash(copy) == hash(compressor)
        for layout in self._layouts():
            one, other = _Team(compressor, layout), _Team(copy, layout)
            for _ in range(self.num_rounds):
                assert one.encode() == other.encode()
                one.abort()
                other.abort()
                assert _same(one.play(), other.play())

    # --- what is kept back --------------------------------------------------------------------------------------------

    def test_what_was_said_and_what_is_kept_is_all_there_was(self) -> None:
        """With error feedback: sum of applied + errors = sum of gradients; who is silent keeps its gradient."""
        for team in self._teams(has_errors=True):
            if team.encoders[0].error is None:
                continue
            total, gradients = team.zeros(), team.zeros()
            for step in range(self.num_rounds):
                if step == 1:
                    team.idle(0)
                gradients += team.true_sum()
                total += team.play(quiet=step % NUM_MEMBERS if step else -1).double()
                _close(total + team.errors(), gradients, "what was said and what is kept is not what there was", team)
            kept = team.encoders[1].error
            assert kept is not None
            team.encoders[0].take_error(kept.clone())
            kept.zero_()
            _close(total + team.errors(), gradients, "an error was lost when it was handed over", team)

    def test_whole_gradients_leave_nothing_behind(self) -> None:
        """`whole` says the gradients and all that was kept back, `decode_whole` hears it, and rounds go on."""
        for team in self._teams(has_errors=True):
            for step in range(self.num_rounds):
                if step % 2:
                    expected = team.true_sum() + team.errors()
                    states = team.states()
                    team.encode_whole()
                    team.abort()
                    assert _equal_states(states, team.states()), "state has changed by an abort"
                    _close(team.play_whole().double(), expected, "whole gradients do not say everything", team)
                    _close(team.errors(), team.zeros(), "whole gradients keep something back", team)
                else:
                    team.play()

    def test_who_is_silent_says_nothing_where_gradients_travel_whole_either(self) -> None:
        """`whole` of a silent member is zero."""
        for team in self._teams(has_errors=True):
            team.play()
            whole = team.encoders[0].whole(team.gradients[0], team.at(0, participates=False))
            assert whole is not None, "None says the gradient"
            assert not whole.any()

    def test_after_a_flush_nothing_is_kept(self) -> None:
        """`flush` gives the errors back, and sets errors and memories to zero."""
        for team in self._teams(has_errors=True):
            total, gradients = team.zeros(), team.true_sum()
            total += team.play().double()
            for encoder in team.encoders:
                flushed = encoder.flush()
                if flushed is not None:
                    total += flushed.double()
                assert not any(state.any() for state in (encoder.error, encoder.memory) if state is not None)
            team.decoder.flush()
            silent: dict[int, memoryview] = {}
            out = torch.empty_like(team.gradients[0])
            team.decoder.decode(silent, out)
            team.decoder.abort()
            assert not out.any(), "the decoder remembers something after a flush"
            if team.encoders[0].error is not None:
                _close(total, gradients, "a flush has lost something", team)
                gradients += team.true_sum()
                total += team.play().double()
                _close(total + team.errors(), gradients, "after a flush, rounds do not go on", team)

    def test_the_receiver_remembers_what_workers_have_said(self) -> None:
        """The decoder's memory is the sum of the encoders'."""
        for team in self._teams():
            if not team.compressor.keeps_memory:
                assert all(encoder.memory is None for encoder in team.encoders)
                continue
            for _ in range(self.num_rounds):
                team.play()
            memories = team.zeros()
            for encoder in team.encoders:
                assert encoder.memory is not None
                memories += encoder.memory.double()
            silent: dict[int, memoryview] = {}
            before, after = (torch.empty_like(team.gradients[0]) for _ in range(2))
            team.decoder.decode(silent, before)
            team.decoder.abort()
            team.decoder.remember(memories.to(team.layout.dtype))
            team.decoder.decode(silent, after)
            _close(before.double(), after.double(), "the receiver remembers something else than was said", team)

    # --- sums ---------------------------------------------------------------------------------------------------------

    def test_sums_say_the_same_to_everybody(self) -> None:
        """Payloads that can be summed fit together, can be taken back, and their sum gives all the same bits."""
        for team in self._teams(has_errors=True):
            assert team.compressor.summable == isinstance(team.encoders[0], SummableEncoder)
            if not team.compressor.summable:
                continue
            total, gradients = team.zeros(), team.zeros()
            for step in range(self.num_rounds):
                quiet = step % NUM_MEMBERS if step else -1
                before, states = [gradient.clone() for gradient in team.gradients], team.states()
                first = team.sum_up(quiet)
                assert all(map(_same, before, team.gradients)), "a gradient was changed"
                assert _equal_states(states, team.states()), "state has changed before the commit"
                team.abort()
                outs = team.sum_up(quiet)
                assert all(_same(first[0], out) for out in [*first, *outs]), "members decode a sum in different ways"
                gradients += team.true_sum()
                total += outs[0].double()
                team.commit(outs[0])
                if team.encoders[0].error is not None:
                    _close(total + team.errors(), gradients, "sums and errors are not what there was", team)

    # --- teams --------------------------------------------------------------------------------------------------------

    def _layouts(self, *dtypes: torch.dtype) -> Iterator[Layout]:
        for dtype in dtypes or self.dtypes:
            for shapes in self.buckets if dtype == torch.float32 else self.buckets[:1]:
                yield Layout(tuple(Entry(f"p{at}", shape, dtype) for at, shape in enumerate(shapes)))

    def _teams(self, *dtypes: torch.dtype, has_errors: bool = False) -> Iterator[_Team]:
        """Teams for every bucket; those that are to have errors with error feedback round the compressor, too."""
        compressors = [self.make_compressor()]
        if has_errors:
            with contextlib.suppress(ExchangeInvalid):
                compressors.append(ErrorFeedback(compressors[0]))
        for compressor in compressors:
            for layout in self._layouts(*dtypes):
                yield _Team(compressor, layout)


class _Team:
    """Members that send each other's messages to one decoder, in a run that is the same every time."""

    def __init__(self, compressor: Compressor, layout: Layout) -> None:
        self.compressor = compressor
        self.layout = layout
        self.encoders = [compressor.encoder(layout) for _ in range(NUM_MEMBERS)]
        self.decoder = compressor.decoder(layout)
        self.applied: Tensor | None = None
        #: The dtype of the last sum, which rounds, too.
        self.summed_in = layout.dtype
        self._chance = torch.Generator().manual_seed(7)
        self._step = 0
        self.samples = list(_SAMPLES)
        self.gradients = self._next_gradients()

    def at(self, rank: int, *, participates: bool = True, samples: float | None = None) -> Round:
        samples = self.samples[rank] if samples is None else samples
        return Round(self._step, rank, NUM_MEMBERS, samples, self.applied, sum(self.samples), participates=participates)

    def idle(self, rank: int) -> None:
        """In this round a member has no samples."""
        self.samples[rank] = 0.0
        self.gradients[rank].zero_()

    def encode(self, quiet: int = -1) -> dict[int, memoryview]:
        """Messages of all members, of which one may be silent."""
        return {
            rank: memoryview(encoder.encode(gradient, self.at(rank, participates=rank != quiet)).data.tobytes())
            for rank, (encoder, gradient) in enumerate(zip(self.encoders, self.gradients, strict=True))
        }

    def encode_whole(self) -> Tensor:
        """The sum of what members say that leave nothing out."""
        whole = [
            encoder.whole(gradient, self.at(rank))
            for rank, (encoder, gradient) in enumerate(zip(self.encoders, self.gradients, strict=True))
        ]
        return _sum([gradient if part is None else part for part, gradient in zip(whole, self.gradients, strict=True)])

    def sum_up(self, quiet: int = -1) -> list[Tensor]:
        """What each member decodes of a sum."""
        encoders = [encoder for encoder in self.encoders if isinstance(encoder, SummableEncoder)]
        summands: list[Tensor | None] = [
            encoder.summand(gradient, self.at(rank, participates=rank != quiet))
            for rank, (encoder, gradient) in enumerate(zip(encoders, self.gradients, strict=True))
        ]
        total = self.gradients[0]
        while present := [summand for summand in summands if summand is not None]:
            assert len(present) == NUM_MEMBERS, "some members have another summand, and some have none"
            assert len({(summand.dtype, summand.shape) for summand in present}) == 1, "summands do not fit together"
            total = _sum(present)
            for summand, gradient in zip(present, self.gradients, strict=True):
                if summand.data_ptr() != gradient.data_ptr():
                    # Summands are the caller's, but where they are its own gradient.
                    summand.fill_(7)
            self.summed_in = total.dtype
            summands = [encoder.next_summand(total.clone()) for encoder in encoders]
        outs = [torch.full_like(self.gradients[0], 7) for _ in encoders]
        for encoder, out in zip(encoders, outs, strict=True):
            encoder.decode_sum(total.clone(), out)
        return outs

    def play(self, quiet: int = -1) -> Tensor:
        """A whole round; gives what is applied."""
        out = torch.full_like(self.gradients[0], 7)
        self.decoder.decode(self.encode(quiet), out)
        return self.commit(out)

    def play_whole(self) -> Tensor:
        """A round in which nothing is left out; gives what is applied."""
        out = torch.full_like(self.gradients[0], 7)
        self.decoder.decode_whole(self.encode_whole(), out)
        return self.commit(out)

    def commit(self, applied: Tensor) -> Tensor:
        for half in (*self.encoders, self.decoder):
            half.commit()
        self.applied = applied
        self._step += 1
        self.samples = list(_SAMPLES)
        self.gradients = self._next_gradients()
        return applied

    def abort(self) -> None:
        for half in (*self.encoders, self.decoder):
            half.abort()

    def states(self) -> list[dict[str, Any]]:
        return [half.state_dict() for half in (*self.encoders, self.decoder)]

    def through_single_parameters(self) -> _Team:
        """A team that goes on from the state of this one, which went through buckets of one parameter each."""
        other = _Team(self.compressor, self.layout)
        other.applied, other._step, other.gradients = self.applied, self._step, self.gradients
        other._chance.set_state(self._chance.get_state())
        for half, new_half, make in zip(
            (*self.encoders, self.decoder),
            (*other.encoders, other.decoder),
            [self.compressor.encoder] * NUM_MEMBERS + [self.compressor.decoder],
            strict=True,
        ):
            parts: dict[str, Any] = {}
            for entry in self.layout.entries:
                single = make(Layout((entry,)))
                single.load_state_dict(half.state_dict())
                for kind, state in single.state_dict().items():
                    parts[kind] = {**parts.get(kind, {}), **state} if isinstance(state, Mapping) else state
            new_half.load_state_dict(parts)
        return other

    def errors(self) -> Tensor:
        """All that is kept back."""
        return self.zeros() + sum(encoder.error.double() for encoder in self.encoders if encoder.error is not None)

    def true_sum(self) -> Tensor:
        return _sum([gradient.double() for gradient in self.gradients])

    def zeros(self) -> Tensor:
        return torch.zeros(self.layout.numel, dtype=torch.float64)

    def _next_gradients(self) -> list[Tensor]:
        """A common part, so that there is something to learn, and one of each member; some components are zero."""
        common = torch.randn(self.layout.numel, generator=self._chance, dtype=torch.float64)
        own = torch.randn(NUM_MEMBERS, self.layout.numel, generator=self._chance, dtype=torch.float64)
        weights = torch.tensor(_SAMPLES, dtype=torch.float64).view(-1, 1)
        gradients = weights * (own + common) * (torch.arange(self.layout.numel) % 5 != 3)
        return list(gradients.to(self.layout.dtype))


def _sum(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """The same bits, or both absent."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _equal_states(one: Any, other: Any) -> bool:
    """States are tensors and plain values, in lists and mappings."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        states = cast(Mapping[str, Any], one)
        return states.keys() == other.keys() and all(_equal_states(state, other[at]) for at, state in states.items())
    if isinstance(one, list):
        return len(cast(list[Any], one)) == len(other) and all(map(_equal_states, cast(list[Any], one), other))
    return one == other


T = TypeVar("T")


def _copied(thing: T) -> T:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - its own bytes


def _refusal(decoder: Decoder, messages: Mapping[int, memoryview], out: Tensor) -> MessageCorrupt | None:
    try:
        decoder.decode(messages, out)
    except MessageCorrupt as error:
        return error
    return None


def _close(found: Tensor, expected: Tensor, complaint: str, team: _Team) -> None:
    off = (found - expected).abs().max().item()
    size = 1 + expected.abs().max().item()
    assert off <= max(_TOLERANCE[team.layout.dtype], _TOLERANCE[team.summed_in]) * size, (
        f"{complaint}: off by {off:.3g} of {size:.3g} with {team.compressor!r}, {team.layout.dtype}"
    )


def _damaged(data: bytes) -> Iterator[bytes]:
    """Bytes that are cut, longer, changed here or there, and bytes of nobody."""
    chance = np.random.default_rng(11)
    for length in {0, 1, 2, 3, 7, len(data) // 2, len(data) - 1} & set(range(len(data))):
        yield data[:length]
    yield data + b"\0"
    yield data + data
    for _ in range(40):
        changed = bytearray(data)
        if changed:
            changed[chance.integers(min(len(changed), 16))] = chance.integers(256)
            changed[chance.integers(len(changed))] = chance.integers(256)
        yield bytes(changed)
        yield chance.bytes(int(chance.integers(64)))
