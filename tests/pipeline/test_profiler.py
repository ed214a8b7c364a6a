"""The profiler measures what there is, leaves the model as it was, and refuses what it cannot measure."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ropewalk.errors import NotTraceable, ProfileInvalid
from ropewalk.pipeline.planning import plan
from ropewalk.pipeline.profiler import profile
from ropewalk.pipeline.profiles import Operator, Profile, SavedValue
from ropewalk.pipeline.tracing.tracer import trace


def test_times_bytes_and_names_of_a_small_net() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2, bias=False))
    found = profile(model, torch.randn(16, 4), repeats=2)
    first, tanh, dropout, last = (operator for operator in found.operators if not operator.is_input)
    (data,) = (operator for operator in found.operators if operator.is_input)
    assert found.num_samples == 16 and found.model == "Sequential" and "cpu" in found.device
    assert (data.output_bytes, data.gradient_bytes, data.forward_s, data.backward_s) == (256, 0, 0, 0)
    assert first.parameters == {"0.weight": 128, "0.bias": 32}
    assert (first.output_bytes, first.gradient_bytes) == (512, 512)
    # A linear layer keeps its input, tanh its output, dropout a mask of its own; weights do not count.
    assert first.saved == (SavedValue(data.id, 256),) and first.saved_bytes == 0
    assert tanh.saved == (SavedValue(tanh.id, 512),) and tanh.saved_bytes == 0
    assert dropout.saved == () and dropout.saved_bytes == 512
    assert last.saved == (SavedValue(dropout.id, 512),)
    assert first.held_bytes == 256 + 512 and tanh.held_bytes == 0  # input and gradient of the output, until W
    assert [operator.is_random for operator in (first, tanh, dropout, last)] == [False, False, True, False]
    assert all(operator.forward_s > 0 and operator.has_split_backward for operator in (first, last))
    assert tanh.weight_gradient_s == 0
    assert Profile.from_json(found.to_json()) == found


def test_a_profile_leaves_no_tensors_behind() -> None:
    # Of each operator its saved output stayed, and of one with several layers all that its backward needs: circles
    # through nodes of autograd, which no garbage collection sees. A process that measured in a loop grew to 13 GB.
    block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 2, 1), nn.Conv1d(2, 1, 1))
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), block)

    def num_tensors() -> int:
        gc.collect()
        return sum(issubclass(type(one), Tensor) for one in gc.get_objects())

    profile(model, torch.ones(2, 4), repeats=1)
    before = num_tensors()
    profile(model, torch.ones(2, 4), repeats=1)
    assert num_tensors() == before


def test_types_and_values_without_a_gradient_are_counted_as_they_are() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.scale = nn.Embedding(9, 4), nn.Linear(4, 4).bfloat16()

        def forward(self, tokens: Tensor) -> Tensor:
            mask = tokens > 3
            return self.scale(self.embedding(tokens).bfloat16()) * mask.unsqueeze(-1)

    found = profile(Net(), (torch.randint(9, (2, 3)),), repeats=1)
    sizes = {
        operator.id.split(":")[0]: (operator.output_bytes, operator.gradient_bytes) for operator in found.operators
    }
    assert sizes["input.tokens"] == (48, 0)
    assert sizes["embedding"] == (96, 96)
    assert sizes["scale"] == (48, 48)
    masks = [operator for operator in found.operators if operator.gradient_bytes == 0 and not operator.is_input]
    assert all(operator.backward_s == 0 for operator in masks)


def test_a_model_that_will_compute_in_bfloat16_is_measured_in_it() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
    x = torch.randn(8, 64)
    whole, half = (profile(model, x, repeats=1, autocast=dtype) for dtype in (None, torch.bfloat16))
    assert [one.output_bytes for one in whole.operators[1:]] == [8 * 64 * 4] * 3
    assert [one.output_bytes for one in half.operators[1:]] == [8 * 64 * 2] * 3
    assert [one.parameters for one in half.operators] == [one.parameters for one in whole.operators]


def test_one_storage_counts_once_however_many_keep_views_of_it() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Unflatten(1, (2, 2)), nn.Linear(2, 3))
    found = profile(model, torch.randn(6, 5), repeats=1).by_id
    # The value of the relu is kept by the relu, and, seen otherwise, by the layer behind it.
    assert found["1:0"].saved == found["3:0"].saved == (SavedValue("1:0", 96),)
    assert found["1:0"].saved_bytes == found["3:0"].saved_bytes == 0


def test_a_tie_is_one_parameter_that_two_operators_read() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    found = profile(model, torch.randn(2, 4), repeats=1)
    assert list(found.tied) == ["0.weight"]
    assert found.parameter_bytes == 4 * (16 + 4 + 4)


def test_model_and_generators_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Flatten(), nn.Linear(9, 2))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    inputs = torch.zeros(4, 2, 5, requires_grad=True)
    profile(model, inputs, repeats=1)
    assert torch.equal(torch.randn(3), expected)
    assert gc.isenabled() and model.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert inputs.grad is None and all(parameter.grad is None for parameter in model.parameters())


def test_times_come_from_the_clock_and_progress_is_told() -> None:
    ticks = iter(range(10**9))
    said: list[str] = []
    found = profile(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        torch.randn(2, 4),
        repeats=2,
        report=said.append,
        clock=lambda: float(next(ticks)),
    )
    # Each reading is a second after the one before, with an operator in between or nothing: nothing is left.
    assert {(one.forward_s, one.backward_s, one.weight_gradient_s, one.spread_s) for one in found.operators} == {
        (0, 0, 0, 0)
    }
    assert said[0] == "tracing Sequential" and said[-1] == "pass 2 of 2"
    assert found.spread == 0 and found.spread_in_words == ""


class SharedCore:
    """A clock on which an operator takes 1 s, and a call with nothing in it 0.1 s; 20 times as much in some passes."""

    def __init__(self, is_busy: Callable[[int], bool]) -> None:
        self._is_busy = is_busy
        self.num_passes = 0
        self._now_s, self._num_readings = 0.0, 0

    def report(self, said: str) -> None:
        if said.startswith("pass"):
            self.num_passes += 1

    def __call__(self) -> float:
        # Read before and after an operator, then before and after nothing.
        took_s = (0.0, 1.0, 0.0, 0.1)[self._num_readings % 4]
        self._num_readings += 1
        self._now_s += took_s * (20 if self._is_busy(self.num_passes) else 1)
        return self._now_s


def _measured_on(clock: SharedCore, repeats: int) -> Profile:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    return profile(net, torch.randn(2, 4), repeats=repeats, clock=clock, report=clock.report)


def test_a_profile_is_right_though_a_busy_machine_disturbs_most_passes() -> None:
    """Medians of five passes were wrong by a factor of 20, without a word."""
    clock = SharedCore(lambda number: number % 3 != 1)
    found = _measured_on(clock, repeats=5)
    assert clock.num_passes == 20, "it went on as long as times varied much, up to four times as long"
    for one in found.operators[1:]:
        assert one.forward_s == pytest.approx(0.9) and one.backward_s == pytest.approx(0.9)
        assert one.spread_s == pytest.approx(19)


def test_a_profile_says_how_much_its_times_varied_and_warns_if_that_is_much(caplog: pytest.LogCaptureFixture) -> None:
    found = _measured_on(SharedCore(lambda number: number % 3 != 1), repeats=5)
    (warning,) = caplog.messages
    assert warning == f"Sequential: {found.spread_in_words}"
    assert re.match(
        r"measured times vary by more than 100%.*most at 0:0: 1.8 s, 19 s more or less", found.spread_in_words
    )
    assert "has the lower quartile of each operator" in warning and "more repeats" in warning
    (note,) = [line for line in str(plan(found, devices=2)).splitlines() if line.startswith("note")]
    assert note.endswith(found.spread_in_words)
    assert Profile.from_json(found.to_json()).spread == found.spread


@pytest.mark.parametrize(("took_s", "is_unsure"), [(1e-2, True), (1e-5, False)])
def test_a_large_spread_of_operators_that_take_next_to_no_time_decides_nothing(took_s: float, is_unsure: bool) -> None:
    # A small model was said to have times that "vary by 9919%", and nothing could be done about it.
    found = Profile((Operator("a", forward_s=took_s, spread_s=20 * took_s),), ())
    assert found.spread == pytest.approx(20) and found.is_unsure is is_unsure
    assert ("more repeats" in found.spread_in_words) is is_unsure


def test_a_few_disturbed_passes_are_neither_seen_in_times_nor_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    clock = SharedCore(lambda number: number == 3)
    found = _measured_on(clock, repeats=5)
    assert clock.num_passes == 5 and found.spread == 0 and not caplog.messages
    assert all(one.forward_s == pytest.approx(0.9) for one in found.operators[1:])


def test_a_profile_that_does_not_know_how_much_its_times_varied_is_planned_without_a_word_of_it() -> None:
    old = Profile.from_json(
        '{"operators": [{"id": "a", "forward_s": 1.0}, {"id": "b", "forward_s": 1.0}], "edges": []}'
    )
    assert old.spread == 0 and "vary" not in str(plan(old, devices=2))


@pytest.mark.parametrize(
    ("model", "inputs", "error", "words"),
    [
        (lambda: nn.Sequential(), (torch.ones(2, 4),), ProfileInvalid, "at least one operator"),
        (lambda: nn.Identity(), (torch.ones(2, 4),), ProfileInvalid, "at least one operator"),
        (lambda: nn.Sequential(nn.Tanh(), nn.Linear(4, 4)), (torch.ones(2, 5),), NotTraceable, r"input \(2, 5\)"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    model: Callable[[], nn.Module], inputs: tuple[Tensor, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        profile(model(), inputs, repeats=1)


def test_an_operator_that_cannot_run_is_named_with_what_it_was_given() -> None:
    graph = trace(nn.Sequential(nn.Tanh(), nn.Flatten(1), nn.Linear(6, 4)), torch.ones(2, 2, 3))
    with pytest.raises(ProfileInvalid, match=r"'2:0' \(Linear\) cannot run .* it was given 1:0 \(2, 8\)"):
        profile(graph, torch.ones(2, 2, 4), repeats=1)


def test_at_least_one_repeat_is_needed() -> None:
    with pytest.raises(ProfileInvalid, match="repeats must be at least 1, not 0"):
        profile(nn.Sequential(nn.Linear(2, 2)), torch.ones(2, 2), repeats=0)


def test_a_profile_with_concurrency_is_measured_beside_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.pipeline.profiler.usable_cpus", lambda: 2 * torch.get_num_threads())
    lines: list[str] = []
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    found = profile(model, torch.zeros(16, 4), repeats=1, concurrency=2, report=lines.append)
    assert "starting 1 process that computes beside this one" in lines
    assert lines.index("counting bytes") > lines.index("starting 1 process that computes beside this one")
    assert found.device.endswith(", 2 processes at the same time")
    assert sum(one.forward_s > 0 for one in found.operators) >= 2


@pytest.mark.parametrize("concurrency", [0, -1])
def test_concurrency_counts_the_measuring_process(concurrency: int) -> None:
    with pytest.raises(ProfileInvalid, match=f"at least 1, not {concurrency}"):
        profile(nn.Sequential(nn.Linear(4, 2)), torch.zeros(3, 4), concurrency=concurrency)


def test_processes_that_would_wait_for_each_others_cores_measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr("ropewalk.pipeline.profiler.usable_cpus", lambda: 3 * threads - 1)
    with pytest.raises(ProfileInvalid, match=f"needs {3 * threads} cores, and {3 * threads - 1} can be used here"):
        profile(nn.Sequential(nn.Linear(4, 2)), torch.zeros(3, 4), concurrency=3)


def test_a_graph_is_measured_where_it_is() -> None:
    graph = trace(nn.Sequential(nn.Linear(2, 2)), torch.ones(2, 2))
    assert [one.id for one in profile(graph, torch.ones(2, 2), repeats=1).operators] == [
        one.id for one in graph.operators
    ]
    with pytest.raises(ProfileInvalid, match="leave out device"):
        profile(graph, torch.ones(2, 2), repeats=1, device="cpu")


def test_inputs_that_a_model_does_not_take_are_refused_by_name() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x @ y

    with pytest.raises((NotTraceable, ProfileInvalid), match="Net"):
        profile(Net(), (torch.ones(2, 3),), repeats=1)


def test_a_frozen_part_has_no_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 4))
    found = {one.id: one for one in profile(model, torch.randn(2, 4), repeats=1).operators}
    frozen: Operator = found["0:0"]
    assert (frozen.backward_s, frozen.gradient_bytes, frozen.saved_bytes, frozen.saved) == (0, 0, 0, ())
