"""The conformance suite of compressors.

    class TestMine(CompressorConformance):          # pytest runs its methods; pytest is not needed to import this
        def make_compressor(self) -> Compressor:
            return Mine()

Three members with different gradients run some rounds, with buckets of several parameters, of one parameter, and of one
component, in float32, float64 and bfloat16. The laws are those of `exchange.compressors.compressor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.compressor import Compressor, SummableEncoder
from ropewalk.exchange.compressors.error_feedback import ErrorFeedback
from ropewalk.testing.compressor_team import NUM_MEMBERS, Team, close, copied, damaged, equal_states, refusal, same
from ropewalk.testing.conformance_suite import ConformanceSuite


class CompressorConformance(ConformanceSuite):
    """The suite: subclass it, override `make_compressor`, and run it by pytest or with the tests of `all_tests()`."""

    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.bfloat16)
    """The dtypes of the gradients."""
    buckets: tuple[tuple[tuple[int, ...], ...], ...] = (((12, 10), (10,), (), (4, 3, 3, 3)), ((9,),), ((),))
    """Shapes of the parameters of each bucket; the first is tried in every dtype, the others in float32."""
    device: str = "cpu"
    """The device of the gradients: "cpu" or "cuda"."""
    num_rounds: int = 4
    """The number of rounds."""

    def make_compressor(self) -> Compressor:
        """Make a compressor as your users do."""
        raise NotImplementedError("say how your compressor is made: override make_compressor()")

    # --- messages -----------------------------------------------------------------------------------------------------

    def test_messages_say_what_they_cost(self) -> None:
        """`bits`, `layers` and `num_values` agree with the bytes that are sent."""
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
        """A member sends no byte if it has no samples and no kept error, or does not take part in the round."""
        for team in self._teams():
            nothing = torch.zeros_like(team.gradients[0])
            first = team.encoders[0].encode(nothing, team.at(0, samples=0.0))
            team.abort()
            team.play()
            later = team.encoders[0].encode(team.gradients[0], team.at(0, participates=False))
            for message in (first, later):
                assert not message.data.size and not message.layers and not message.num_values

    def test_zero_gradients_say_zero(self) -> None:
        """If all gradients are zero, so is the result."""
        for team in self._teams():
            team.gradients = [torch.zeros_like(gradient) for gradient in team.gradients]
            assert not team.play().any()

    def test_a_gradient_is_not_changed(self) -> None:
        """The compressor writes neither to gradients nor to the applied mean."""
        for team in self._teams():
            for _ in range(self.num_rounds):
                before = [gradient.clone() for gradient in team.gradients]
                applied = None if team.applied is None else team.applied.clone()
                for rank, encoder in enumerate(team.encoders):
                    encoder.encode(team.gradients[rank], team.at(rank))
                    encoder.abort()
                    encoder.whole(team.gradients[rank], team.at(rank))
                    encoder.abort()
                assert all(map(same, before, team.gradients)) and same(applied, team.applied)
                team.play()

    # --- two phases ---------------------------------------------------------------------------------------------------

    def test_a_round_that_was_taken_back_can_be_repeated(self) -> None:
        """Encoding and decoding change no state; after an abort they give the same result again."""
        for team in self._teams():
            for _ in range(self.num_rounds):
                states = team.states()
                messages, out = team.encode(), torch.empty_like(team.gradients[0])
                team.decoder.decode(messages, out)
                first = out.clone()
                assert equal_states(states, team.states()), "state has changed before the commit"
                team.abort()
                team.abort()
                assert equal_states(states, team.states()), "state has changed by an abort"
                assert team.encode() == messages, "after an abort other bytes are sent"
                team.decoder.decode(messages, out)
                assert same(first, out), "after an abort the same bytes say something else"
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
        """This holds for any order of messages, and whether or not silent members are listed."""
        for team in self._teams():
            replica = team.compressor.decoder(team.layout)
            for step in range(self.num_rounds):
                quiet = step % NUM_MEMBERS if step else -1
                messages = team.encode(quiet)
                one, other = (torch.full_like(team.gradients[0], 7) for _ in range(2))
                team.decoder.decode(messages, one)
                shuffled = {rank: messages[rank] for rank in reversed(messages) if messages[rank]}
                replica.decode({rank: memoryview(data) for rank, data in shuffled.items()}, other)
                assert same(one, other), "replicas of the decoder differ"
                replica.commit()
                team.commit(one)

    def test_corrupt_bytes_are_refused_or_read(self) -> None:
        """The only error is MessageCorrupt with the rank, and an abort leaves no trace of the bytes."""
        for team in self._teams(torch.float32):
            team.play()
            messages = team.encode()
            expected, out = (torch.empty_like(team.gradients[0]) for _ in range(2))
            team.decoder.decode(messages, expected)
            team.decoder.abort()
            for corrupt in damaged(bytes(messages[1])):
                refused = refusal(team.decoder, {**messages, 1: memoryview(corrupt)}, out)
                assert refused is None or refused.rank == 1, f"{refused} does not say that it is of rank 1"
                team.decoder.abort()
            team.decoder.decode(messages, out)
            assert same(expected, out), "a corrupt message has left something behind"

    # --- state --------------------------------------------------------------------------------------------------------

    def test_state_goes_by_parameter(self) -> None:
        """A state that is saved, split by parameter and joined again gives the same rounds as before."""
        for team in self._teams():
            for _ in range(self.num_rounds):
                team.play()
            other = team.through_single_parameters()
            assert equal_states(team.states(), other.states())
            for _ in range(2):
                assert team.encode() == other.encode()
                team.abort()
                other.abort()
                assert same(team.play(), other.play())

    def test_state_is_a_copy(self) -> None:
        """A saved state does not change in later rounds."""
        for team in self._teams():
            team.play()
            states = team.states()
            copies = copied(states)
            team.play()
            assert equal_states(states, copies)

    def test_the_configuration_says_everything(self) -> None:
        """A copy in another process sends the same bytes, which depend only on seed, step and rank."""
        compressor = self.make_compressor()
        copy = copied(compressor)
        assert copy == compressor and hash(copy) == hash(compressor)
        for layout in self._layouts():
            one, other = Team(compressor, layout), Team(copy, layout)
            for _ in range(self.num_rounds):
                assert one.encode() == other.encode()
                one.abort()
                other.abort()
                assert same(one.play(), other.play())

    # --- what is kept back --------------------------------------------------------------------------------------------

    def test_what_was_said_and_what_is_kept_is_all_there_was(self) -> None:
        """With error feedback, sum of applied + errors = sum of gradients; a silent member keeps its gradient."""
        for team in self._teams(has_errors=True):
            if team.encoders[0].error is None:
                continue
            total, gradients = team.zeros(), team.zeros()
            for step in range(self.num_rounds):
                if step == 1:
                    team.idle(0)
                gradients += team.true_sum()
                total += team.play(quiet=step % NUM_MEMBERS if step else -1).double()
                close(total + team.errors(), gradients, "what was said and what is kept is not what there was", team)
            kept = team.encoders[1].error
            assert kept is not None
            team.encoders[0].take_error(kept.clone())
            kept.zero_()
            close(total + team.errors(), gradients, "an error was lost when it was handed over", team)

    def test_whole_gradients_leave_nothing_behind(self) -> None:
        """`whole` sends gradients and kept errors, `decode_whole` receives them, and later rounds work."""
        for team in self._teams(has_errors=True):
            for step in range(self.num_rounds):
                if step % 2:
                    expected = team.true_sum() + team.errors()
                    states = team.states()
                    team.encode_whole()
                    team.abort()
                    assert equal_states(states, team.states()), "state has changed by an abort"
                    close(team.play_whole().double(), expected, "whole gradients do not say everything", team)
                    close(team.errors(), team.zeros(), "whole gradients keep something back", team)
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
        """`flush` sets errors and memories to zero."""
        for team in self._teams(has_errors=True):
            total, gradients = team.zeros(), team.true_sum()
            total += team.play().double()
            for encoder in team.encoders:
                if encoder.error is not None:
                    total += encoder.error.double()
                encoder.flush()
                assert not any(state.any() for state in (encoder.error, encoder.memory) if state is not None)
            team.decoder.flush()
            silent: dict[int, memoryview] = {}
            out = torch.empty_like(team.gradients[0])
            team.decoder.decode(silent, out)
            team.decoder.abort()
            assert not out.any(), "the decoder remembers something after a flush"
            if team.encoders[0].error is not None:
                close(total, gradients, "a flush has lost something", team)
                gradients += team.true_sum()
                total += team.play().double()
                close(total + team.errors(), gradients, "after a flush, rounds do not go on", team)

    def test_what_is_transparent_shows_nan_and_infinity_and_keeps_nothing(self) -> None:
        """A transparent compressor need not check for them: every receiver gets them, and no later round does."""
        for value in (float("nan"), float("inf")):
            for team in self._teams():
                if not team.compressor.transparent:
                    continue
                for encoder in team.encoders:
                    assert encoder.error is None and encoder.memory is None and not encoder.state_dict()
                sound = team.gradients[1].clone()
                team.gradients[1].view(-1)[-1] = value
                out = torch.empty_like(sound)
                team.decoder.decode(team.encode(), out)
                assert not out.isfinite().all(), f"{value} of one member is not in the sum"
                team.abort()
                team.decoder.decode_whole(team.encode_whole(), out)
                assert not out.isfinite().all(), f"{value} of one member is not in the dense sum"
                team.abort()
                if isinstance(team.encoders[0], SummableEncoder):
                    assert not any(heard.isfinite().all() for heard in team.sum_up())
                    team.abort()
                team.gradients[1].copy_(sound)
                assert team.play().isfinite().all()

    def test_the_receiver_remembers_what_workers_have_said(self) -> None:
        """The decoder's memory is the sum of the encoders' memories."""
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
            close(before.double(), after.double(), "the receiver remembers something else than was said", team)

    # --- sums ---------------------------------------------------------------------------------------------------------

    def test_sums_say_the_same_to_everybody(self) -> None:
        """Summable payloads have equal sizes, can be aborted, and their sum decodes to the same bits everywhere."""
        for team in self._teams(has_errors=True):
            assert team.compressor.summable == isinstance(team.encoders[0], SummableEncoder)
            if not team.compressor.summable:
                continue
            total, gradients = team.zeros(), team.zeros()
            for step in range(self.num_rounds):
                quiet = step % NUM_MEMBERS if step else -1
                before, states = [gradient.clone() for gradient in team.gradients], team.states()
                first = team.sum_up(quiet)
                assert all(map(same, before, team.gradients)), "a gradient was changed"
                assert equal_states(states, team.states()), "state has changed before the commit"
                team.abort()
                outs = team.sum_up(quiet)
                assert all(same(first[0], out) for out in [*first, *outs]), "members decode a sum in different ways"
                gradients += team.true_sum()
                total += outs[0].double()
                team.commit(outs[0])
                if team.encoders[0].error is not None:
                    close(total + team.errors(), gradients, "sums and errors are not what there was", team)

    # --- teams --------------------------------------------------------------------------------------------------------

    def _layouts(self, *dtypes: torch.dtype) -> Iterator[Layout]:
        for dtype in dtypes or self.dtypes:
            for shapes in self.buckets if dtype == torch.float32 else self.buckets[:1]:
                yield Layout(tuple(BucketEntry(f"p{at}", shape, dtype, self.device) for at, shape in enumerate(shapes)))

    def _teams(self, *dtypes: torch.dtype, has_errors: bool = False) -> Iterator[Team]:
        """Yield teams for every bucket; with `has_errors`, also with the compressor inside error feedback."""
        compressors = [self.make_compressor()]
        if has_errors:
            with contextlib.suppress(ExchangeInvalid):
                compressors.append(ErrorFeedback(compressors[0]))
        for compressor in compressors:
            for layout in self._layouts(*dtypes):
                yield Team(compressor, layout)
