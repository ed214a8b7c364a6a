"""What a worker sends for a sum, and when: decided without links. All members are in this process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk.pipeline.stages.gradient_norm import Norms
from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, InMemorySums, SumKey
from ropewalk.training.sliced_sum import LEAST_BYTES, SlicedSum, SumMessage, SumPart

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
#: Elements of gradients: on both sides of the least that is sliced, and with remainders for any number of members.
SIZES = [1, LEAST_BYTES // 8 - 1, LEAST_BYTES // 4 - 1, LEAST_BYTES // 4, 12_347]


def members_of(num: int) -> tuple[Contributor, ...]:
    return tuple(Contributor(2, replica) for replica in range(num))


def replicas(num: int) -> SumKey:
    return SumKey.of_replicas(2, members_of(num), 1)


def random(size: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers of many magnitudes, so that another order of additions is another sum."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randn(size, generator=draw) * 10 ** torch.randn(size, generator=draw)
    return numbers.to(dtype)


def tensors(message: SumMessage) -> list[Tensor]:
    whole = [one for one in message.whole.gradients.values() if one is not None] if message.whole is not None else []
    return [*whole, *message.slices.values()]


class Replicas:
    """The sums of all members of a key, and the messages under way between them."""

    def __init__(self, key: SumKey) -> None:
        self.key = key
        self.sums = {member: SlicedSum(key) for member in key.members}
        self.under_way: list[tuple[Contributor, SumPart, SumMessage]] = []
        self.sent_bytes = dict.fromkeys(key.members, 0)
        self.num_sent = dict.fromkeys(key.members, 0)

    def contribute(self, member: Contributor, contribution: GradientContribution) -> None:
        for to, message in self.sums[member].contribute(member, contribution).items():
            self._send(member, to, SumPart(member, False), message)
        self._add_up(member)

    def deliver(self, index: int) -> None:
        to, part, message = self.under_way.pop(index)
        self.sums[to].arrive(part, message)
        self._add_up(to)

    def index(self, to: Contributor, *, is_total: bool) -> int:
        """Of the first such message."""
        return next(n for n, (other, part, _) in enumerate(self.under_way) if (other, part.is_total) == (to, is_total))

    def _add_up(self, member: Contributor) -> None:
        if (total := self.sums[member].add_up(member)) is not None:
            for to in self.key.members:
                self._send(member, to, SumPart(member, True), total)

    def _send(self, member: Contributor, to: Contributor, part: SumPart, message: SumMessage) -> None:
        if to != member:
            self.num_sent[member] += 1
            self.sent_bytes[member] += sum(tensor.numel() * tensor.element_size() for tensor in tensors(message))
            self.under_way.append((to, part, message))


def done(key: SumKey, contributions: list[GradientContribution]) -> Replicas:
    """A sum in which everything has arrived."""
    everybody = Replicas(key)
    for member, contribution in zip(key.members, contributions, strict=True):
        everybody.contribute(member, contribution)
    while everybody.under_way:
        everybody.deliver(0)
    return everybody


def in_memory(key: SumKey, contributions: list[GradientContribution]) -> GradientContribution:
    sums = InMemorySums()
    for member, contribution in zip(key.members, contributions, strict=True):
        sums.contribute(key, member, contribution)
    return sums.take(key, key.members[0])


def assert_same(found: GradientContribution, expected: GradientContribution) -> None:
    assert found.weight == expected.weight and list(found.gradients) == list(expected.gradients)
    for name, gradient in found.gradients.items():
        other = expected.gradients[name]
        assert (gradient is None) == (other is None), name
        if gradient is not None and other is not None:
            assert (gradient.dtype, gradient.shape, gradient.stride()) == (other.dtype, other.shape, other.stride())
            assert torch.equal(gradient, other), name


def drawn_gradient(data: st.DataObject, seed: int, size: int, dtype: torch.dtype, layout: str) -> Tensor | None:
    if data.draw(st.integers(0, 3)) == 0:
        return None
    gradient = random(size, dtype, seed)
    if layout == "transposed" and size % 2 == 0:
        return gradient.view(2, -1).t()
    if layout == "channels last":
        return gradient.view(1, 1, 1, -1).expand(2, 3, 1, -1).contiguous(memory_format=torch.channels_last)
    return gradient.expand(2, -1) if layout == "expanded" else gradient


LAYOUTS = ["row", "transposed", "channels last", "expanded"]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.data())
def test_sums_are_those_of_one_process_to_the_bit_whatever_the_order(num: int, data: st.DataObject) -> None:
    key = replicas(num)
    facts = [
        (data.draw(st.sampled_from(SIZES)), data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(LAYOUTS)))
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    contributions = [
        GradientContribution(
            {f"w{n}": drawn_gradient(data, 100 * member.replica + n, *one) for n, one in enumerate(facts)},
            data.draw(st.sampled_from([None, 0.5 + member.replica])),
        )
        for member in key.members
    ]
    everybody = Replicas(key)
    waiting = list(data.draw(st.permutations(list(zip(key.members, contributions, strict=True)))))
    while waiting or everybody.under_way:
        if waiting and (not everybody.under_way or data.draw(st.booleans())):
            everybody.contribute(*waiting.pop())
        else:
            everybody.deliver(data.draw(st.integers(0, len(everybody.under_way) - 1)))
    expected = in_memory(key, contributions)
    for one in everybody.sums.values():
        assert not one.missing
        assert_same(one.total().copy(), expected)


@pytest.mark.parametrize(("num", "messages"), [(2, 1), (3, 4), (4, 6), (5, 8)])
def test_each_replica_sends_as_few_bytes_as_a_ring(num: int, messages: int) -> None:
    elements = 60_000
    everybody = done(
        replicas(num), [GradientContribution({"w": random(elements, torch.float32, n)}) for n in range(num)]
    )
    assert set(everybody.sent_bytes.values()) == {2 * (num - 1) * 4 * elements // num}
    assert set(everybody.num_sent.values()) == {messages}


def test_small_gradients_and_copies_of_tied_parameters_are_sent_whole() -> None:
    small = [GradientContribution({"w": random(LEAST_BYTES // 4 - 1, torch.float32, n)}) for n in range(3)]
    large = [GradientContribution({"w": random(LEAST_BYTES // 4, torch.float32, n)}) for n in range(3)]
    assert set(done(replicas(3), small).num_sent.values()) == {2}
    assert set(done(replicas(3), large).num_sent.values()) == {4}
    mixed = [
        GradientContribution({**one.gradients, "v": two.gradients["w"]}) for one, two in zip(small, large, strict=True)
    ]
    assert set(done(replicas(3), mixed).num_sent.values()) == {4}
    assert set(done(SumKey("tied w", members_of(3), 1), large).num_sent.values()) == {2}


def test_parts_are_missing_first_and_then_totals() -> None:
    key = replicas(3)
    first, second, third = key.members
    everybody = Replicas(key)
    waits = everybody.sums[third]
    assert waits.missing == [first, second, third]
    for member, missing in ((third, [first, second]), (first, [first, second]), (second, [first, second])):
        everybody.contribute(member, GradientContribution({"w": random(LEAST_BYTES, torch.float32, member.replica)}))
        assert waits.missing == missing
    # Parts for the third, then everything for the others, then totals for the third.
    for to, is_total, missing in ((third, False, [second]), (third, False, [first, second])):
        everybody.deliver(everybody.index(to, is_total=is_total))
        assert waits.missing == missing
    while any(to != third for to, _, _ in everybody.under_way):
        everybody.deliver(next(n for n, (to, _, _) in enumerate(everybody.under_way) if to != third))
    for missing in ([first], []):
        everybody.deliver(everybody.index(third, is_total=True))
        assert waits.missing == missing


def test_a_total_is_sent_once() -> None:
    everybody = done(
        replicas(3), [GradientContribution({"w": random(LEAST_BYTES, torch.float32, n)}) for n in range(3)]
    )
    assert [one.add_up(member) for member, one in everybody.sums.items()] == [None] * 3


def test_a_member_contributes_once() -> None:
    sums = SlicedSum(replicas(3))
    sums.contribute(Contributor(2, 0), GradientContribution({}))
    with pytest.raises(AssertionError, match="contributes twice"):
        sums.contribute(Contributor(2, 0), GradientContribution({}))


def test_what_arrived_is_not_changed() -> None:
    """It may lie in memory of other processes."""
    gradients = [random(LEAST_BYTES, torch.float32, n) for n in range(4)]
    before = [gradient.clone() for gradient in gradients]
    for one in done(replicas(4), [GradientContribution({"w": gradient}) for gradient in gradients]).sums.values():
        one.total()
    assert all(map(torch.equal, gradients, before))


def test_sparse_gradients_are_sent_whole_and_added_to_dense_ones() -> None:
    dense = random(LEAST_BYTES, torch.float32, 0).view(-1, 4)
    rows = torch.sparse_coo_tensor(torch.tensor([[3, 70]]), torch.ones(2, 4), dense.shape, check_invariants=True)
    both = [GradientContribution({"w": one}) for one in (dense, rows, dense)]
    for one in done(replicas(3), both).sums.values():
        found = one.total().gradients["w"]
        assert found is not None and torch.equal(found, dense + dense + rows)
    sparse = done(replicas(3), [GradientContribution({"w": rows})] * 3)
    found = sparse.sums[Contributor(2, 1)].total().gradients["w"]
    assert found is not None and found.is_sparse and torch.equal(found.to_dense(), (3 * rows).to_dense())
    assert set(sparse.num_sent.values()) == {2}


def test_weights_and_norms_are_summed_beside_slices() -> None:
    parts = [
        GradientContribution(
            {"w": random(LEAST_BYTES, torch.float32, n), "b": torch.ones(2)},
            1.0 + n,
            norms=Norms(torch.tensor([n]), torch.tensor([float(n)])),
        )
        for n in range(3)
    ]
    for one in done(replicas(3), parts).sums.values():
        total = one.total()
        assert total.weight == 6.0 and total.norms is not None and total.norms.values.tolist() == [0.0, 1.0, 2.0]
        assert list(total.gradients) == ["w", "b"]
