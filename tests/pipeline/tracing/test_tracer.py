"""Operators have the same ids everywhere; what cannot be traced is refused with the module, the line and a way out."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing import computing, trace
from ropewalk.pipeline.tracing.marks import CutHere, cut_here
from tests.foreign_frames import foreign_frames
from tests.pipeline.models import resnet, unet
from tests.pipeline.tracing.cutting import assert_same, random_stages, run_cut, run_itself
from tests.pipeline.tracing.odd_models import InPlace


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Decides(nn.Module):
    """Looks at its data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if x.sum() > 0:
            return self.norm(x)
        return self.norm(-x)


class Around(nn.Module):
    """A module that looks at its data, a mark, a recurrent layer and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.decides = Decides()
        self.gru = nn.GRU(4, 4)
        self.bound = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, scale: float = 2.0) -> dict[str, Tensor]:
        x = cut_here(self.first(x))
        x = self.decides(x) * scale
        y, last = self.gru(x.view(x.size(0), 2, 2).flatten(1))
        return {"y": y.relu_() + self.bound, "last": last}


# --- torch.fx, leaf modules -------------------------------------------------------------------------------------------


def test_a_model_that_looks_at_its_data_in_a_leaf_module_is_traced_and_cut() -> None:
    model, x = Around(), torch.randn(6, 4)
    graph = trace(model, x, leaf_modules=[Decides])
    assert [one.id for one in graph.operators if one.description == "Decides"] == ["decides:0"]
    assert [norm.name for norm in graph.stage_program(["decides:0"]).batch_norms] == ["decides.norm"]
    for seed in range(4):
        x = torch.randn(3 + seed, 4)
        stages = random_stages(graph, 2 + seed, seed)
        assert_same(run_itself(model, (x,), {}, seed), run_cut(graph, stages, (x,), {}, seed))


@pytest.mark.parametrize("named", [Decides, "decides"])
def test_leaf_modules_are_types_or_paths(named: Any) -> None:
    graph = trace(Around(), torch.randn(6, 4), leaf_modules=[named])
    assert "decides:0" in graph.by_id


def test_a_leaf_module_that_could_be_seen_is_one_operator() -> None:
    real = resnet()
    whole = trace(real.model, real.inputs)
    graph = trace(real.model, real.inputs, leaf_modules=["layer1.0"])
    assert "layer1.0:0" in graph.by_id
    assert not [one.id for one in graph.operators if one.id.startswith("layer1.0.")]
    assert len(graph.operators) < len(whole.operators)


# --- torch.compile ----------------------------------------------------------------------------------------------------


def whole(model: nn.Module) -> tuple[nn.Module, str]:
    compiled: Any = torch.compile(model, backend="eager")
    return compiled, "Kept"


def in_place(model: nn.Module) -> tuple[nn.Module, str]:
    model.compile(backend="eager")
    return model, "Kept"


def inside(model: Any) -> tuple[nn.Module, str]:
    model.first.compile(backend="eager")
    return model, "first"


def wrapped_inside(model: Any) -> tuple[nn.Module, str]:
    model.first = torch.compile(model.first, backend="eager")
    return model, "first"


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


@pytest.mark.parametrize("compiled", [whole, in_place, inside, wrapped_inside])
def test_what_is_compiled_is_traced_as_it_was_with_a_warning(
    compiled: Callable[[nn.Module], tuple[nn.Module, str]],
) -> None:
    # Nothing was said, and the names of all parameters in checkpoints began with "_orig_mod.".
    plain = Kept()
    names = list(dict(plain.named_parameters()))
    model, named = compiled(plain)
    with pytest.warns(UserWarning, match=f"torch.compile has no effect on {named}: stages run"):
        graph = trace(model, torch.randn(3, 4))
    if compiled is not wrapped_inside:
        assert list(graph.parameters) == names
    x = torch.randn(5, 4)
    assert torch.equal(graph(x), plain(x))
    assert plain._compiled_call_impl is not None or compiled is not in_place, "it is left as it was"


@pytest.mark.parametrize("parametrized", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_sequential_with_parametrized_weights_is_traced(parametrized: Callable[[nn.Module], nn.Module]) -> None:
    # It was refused, since torch lets no such module be copied, with the advice to give an nn.Sequential.
    model, x = nn.Sequential(parametrized(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 2)), torch.randn(5, 4)
    graph = trace(model, x)
    assert set(graph.parameters) == set(dict(model.named_parameters()))
    for seed in range(2):
        assert_same(run_itself(model, (x,), {}, seed), run_cut(graph, random_stages(graph, 2, seed), (x,), {}, seed))


# --- ids --------------------------------------------------------------------------------------------------------------


def test_ids_and_their_order_do_not_depend_on_addresses() -> None:
    real = unet(width=2)
    first, second = trace(real.model, real.inputs), trace(real.model, real.inputs)
    assert [(one.id, one.inputs) for one in first.operators] == [(one.id, one.inputs) for one in second.operators]


_PRINT_IDS = """
import torch
from ropewalk.pipeline.tracing import trace
from tests.pipeline.models import unet
real = unet(width=2)
print(*[(one.id, one.inputs) for one in trace(real.model, real.inputs).operators])
"""


@pytest.mark.soak
def test_ids_and_their_order_are_the_same_in_every_process() -> None:
    printed = set[str]()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", _PRINT_IDS]
        printed.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(printed) == 1
    assert "down1.0:0" in printed.pop()


def test_ids_are_module_paths_and_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x) + 1) + 1

    graph = trace(Twice(), torch.randn(3, 4))
    ids = ["input.x", "inner.0:0", "inner.1:0", "add:0", "inner.0:1", "inner.1:1", "add:1"]
    assert [one.id for one in graph.operators] == ids
    assert graph.to_profile_skeleton().tied["inner.0.weight"] == ("inner.0:0", "inner.0:1")


def test_a_mark_is_an_operator_that_does_nothing() -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(cut_here(self.first(x).view(-1, 4)).view(-1, 4).relu())

    graph = trace(Marked(), torch.randn(3, 4))
    assert graph.marks == ("cut_here:0",)
    assert graph.by_id["cut_here:0"].description == "cut_here"
    x = torch.randn(2, 4)
    assert cut_here(x) is x
    listed = trace(nn.Sequential(nn.Linear(4, 4), CutHere(), nn.ReLU()), torch.randn(3, 4))
    assert listed.marks == ("1:0",)


def test_a_mark_where_no_cut_is_legal_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), CutHere(), nn.ReLU(inplace=True))
    with pytest.raises(NotTraceable, match="no cut is legal"):
        trace(model, torch.randn(3, 4))


def test_a_sequential_within_one_is_opened_unless_it_is_a_leaf() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    x = torch.randn(3, 4)
    assert [one.id for one in trace(model, x).operators] == ["input.input", "0:0", "1.0:0", "1.1:0"]
    assert [one.id for one in trace(model, x, leaf_modules=["1"]).operators] == ["input.input", "0:0", "1:0"]


def test_tied_tensors_have_their_first_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embedding(x))

    graph = trace(Tied(), torch.tensor([1, 2]))
    assert graph.ties == {"embedding.weight": ("head.weight",)}
    assert graph.by_id["head:0"].parameters == ("embedding.weight",)


# --- writes in place --------------------------------------------------------------------------------------------------


def test_what_is_written_in_place_does_not_cross_a_cut() -> None:
    graph = trace(InPlace(), torch.randn(4, 6))
    written = [one.id for one in graph.operators if "BatchNorm1d" in one.description]
    assert [graph.by_id[id].description for id in written] == ["BatchNorm1d + sigmoid_"]
    listed = trace(
        nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(4, 4)), torch.randn(3, 4)
    )
    assert [one.description for one in listed.operators] == ["input", "Linear + ReLU", "Linear"]


def test_a_program_does_not_write_to_what_it_is_given() -> None:
    graph = trace(InPlace(), torch.randn(4, 6))
    x = torch.randn(5, 6)
    before = x.clone()
    graph(x)
    assert torch.equal(x, before)


# --- batch normalisation, evaluation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sequential", [False, True])
def test_another_batch_norm_can_be_put_in_place(sequential: bool) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + x

    model = nn.Sequential(nn.BatchNorm1d(4, momentum=None), Block()) if sequential else Block()
    graph = trace(model, torch.randn(4, 4))
    seen: list[str] = []

    def noting(name: str, input: Tensor, *rest: Any) -> Tensor:
        seen.append(name)
        return input * 2

    program = graph.whole_program()
    with computing.replaced(batch_norm=noting):
        graph(torch.randn(5, 4))
    assert seen == [norm.name for norm in program.batch_norms] == (["0", "1.inner.1"] if sequential else ["inner.1"])
    assert all(norm.running_mean in graph.buffers for norm in program.batch_norms)
    graph(torch.randn(5, 4))
    assert len(seen) == len(program.batch_norms)


def test_the_graph_of_evaluation_runs_on_the_same_cut() -> None:
    real = resnet()
    graph = trace(real.model, real.inputs)
    stages = graph.eval_stages(random_stages(graph, 3, 1))
    assert sorted(id for stage in stages for id in stage) == sorted(one.id for one in graph.for_eval.operators)
    modules = {one.id for one in graph.operators if one.parameters}
    assert modules == {one.id for one in graph.for_eval.operators if one.parameters}
    values = graph.for_eval.bind(*real.inputs)
    before = {name: buffer.clone() for name, buffer in graph.buffers.items()}
    for stage in stages:
        values.update(graph.for_eval.stage_program(stage)(values, graph.parameters, graph.buffers))
    assert all(torch.equal(buffer, before[name]) for name, buffer in graph.buffers.items())
    real.model.eval()
    assert torch.equal(values[graph.for_eval.output], real.model(*real.inputs))


def test_a_module_that_is_frozen_in_evaluation_stays_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[1].eval()
    graph = trace(model, torch.randn(3, 4))
    assert not model[1].training
    before = graph.buffers["1.running_mean"].clone()
    graph(torch.randn(3, 4))
    assert torch.equal(graph.buffers["1.running_mean"], before)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_untraceable_model_is_refused_with_module_line_and_ways_out() -> None:
    with pytest.raises(NotTraceable) as raised:
        trace(Around(), torch.randn(6, 4))
    message = str(raised.value)
    assert raised.value.operator == "decides"
    for part in (
        "'decides' (Decides)",
        "test_tracer.py",
        "if x.sum() > 0:",
        "leaf_modules=['decides']",
        "nn.Sequential",
    ):
        assert part in message


def test_a_gradient_that_a_tracer_forgets_is_found() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return gradients[0] * 100

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            return Doubled.apply(self.linear(x))

    with pytest.raises(NotTraceable, match=r"gradient of 'linear.weight'.*leaf_modules"):
        trace(Own(), torch.randn(3, 4))


class DropsPath(nn.Module):
    """Stochastic depth by numbers of Python or numpy."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 if self.draw() < 0.5 else 2.0)


class Deep(nn.Module):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.first, self.path, self.last = nn.Linear(4, 4), DropsPath(draw), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.path(self.first(x)))


_numpy: Any = np.random


@pytest.mark.parametrize("draw", [random.random, _numpy.rand])
def test_random_numbers_of_python_do_not_become_constants(draw: Callable[[], float]) -> None:
    # The number drawn while the model was traced was used in every step: a path was dropped always, or never.
    model, x = Deep(draw), torch.randn(3, 4)
    before = random.getstate(), _numpy.get_state()[2]
    with pytest.raises(NotTraceable, match=r"draws random numbers from Python or numpy.*draw them with torch"):
        trace(model, x)
    assert before == (random.getstate(), _numpy.get_state()[2])
    for alive in (nn.Sequential(model.first, model.path, model.last), None):
        graph = trace(model, x, leaf_modules=[DropsPath]) if alive is None else trace(alive, x)
        assert len({tuple(graph(x).flatten().tolist()) for _ in range(40)}) == 2


def test_a_batch_that_becomes_a_constant_is_found() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + torch.ones(len(x), 1)

    with pytest.raises(NotTraceable, match=r"x\.shape\[0\]"):
        trace(Counts(), torch.randn(3, 4))
    graph = trace(Counts(), torch.randn(3, 4), fixed_batch=True)
    assert graph(torch.randn(3, 4)).shape == (3, 4)
    with pytest.raises(NotTraceable, match=r"\(3, 4\), and is given \(5, 4\)"):
        graph(torch.randn(5, 4))


class Cache:
    """An object that holds tensors, as models that generate text return one."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.linear(x)
        return {"logits": y, "cache": Cache(y) if self.config.use_cache else None}


def test_an_object_among_what_a_model_returns_is_refused_with_what_to_say_instead() -> None:
    model = Remembers()
    with pytest.raises(
        NotTraceable, match=r"Remembers returns .* type Cache as 'cache'.*; say model\.config\.use_cache"
    ):
        trace(model, torch.randn(3, 4))
    model.config.use_cache = False
    assert set(trace(model, torch.randn(3, 4))(torch.randn(5, 4))) == {"logits", "cache"}


class OfFewSamples(nn.Module):
    """Notes how many samples it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.most = 0

    def forward(self, x: Tensor, biases: Tensor) -> Tensor:
        if type(x) is Tensor:
            self.most = max(self.most, len(x))
        return self.linear(x) + biases.sum(0)


def test_a_large_batch_is_traced_and_checked_by_a_few_of_its_samples() -> None:
    model = OfFewSamples()
    graph = trace(model, (torch.randn(256, 3), torch.randn(2, 3)))
    assert graph.for_eval.operators
    assert model.most == 5, "4 samples and one more: 2 and 3 are the sizes of something else"
    x, biases = torch.randn(300, 3), torch.randn(2, 3)
    assert torch.equal(graph(x, biases), model.eval()(x, biases))


class FirstOnes(nn.Module):
    """Has a branch for few samples, or a part that is shorter with few."""

    def __init__(self, *, branch: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.branch:
            return y if x.shape[0] > 9 else 2 * y
        return y + y[:12].sum() / y[:12].shape[0]


@pytest.mark.parametrize("branch", [False, True])
def test_what_a_model_does_with_few_samples_only_is_not_taken_for_all_that_it_does(branch: bool) -> None:
    model = FirstOnes(branch=branch)
    x = torch.randn(64, 8)
    torch.testing.assert_close(trace(model, x)(x), model(x))


def test_a_model_that_fails_with_few_samples_is_traced_with_all() -> None:
    class Highest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return y + y.topk(7, dim=0).values.sum(0)

    model, x = Highest(), torch.randn(20, 8)
    torch.testing.assert_close(trace(model, x)(x), model(x))


def test_a_refusal_shows_the_line_of_the_model_and_next_to_nothing_of_torch() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(NotTraceable) as refused:
        trace(Branches(), torch.randn(3, 4))
    shown = "".join(traceback.format_exception(refused.value))
    assert "return x if x.sum() > 0 else -x" in shown
    assert len(foreign_frames(refused.value)) <= 3, shown  # it was 221 lines of them


@pytest.mark.parametrize(
    ("model", "example", "part"),
    [
        (nn.Sequential(), torch.randn(3, 4), "empty"),
        (nn.Linear(4, 4), torch.randn(3, 5), "itself fails on the example inputs"),
        (nn.Linear(4, 4), (torch.randn(3, 4), 1), "takes"),
        (nn.Linear(4, 4), {"x": torch.randn(3, 4)}, "takes"),
        (nn.Linear(4, 4), (), "takes"),
        (nn.Linear(4, 4), torch.randn(1, 4), "at least 2 samples"),
        (nn.Identity(), torch.randn(3, 4), "nothing"),
    ],
)
def test_a_model_or_inputs_that_cannot_be_are_refused(model: nn.Module, example: Any, part: str) -> None:
    with pytest.raises(NotTraceable, match=part):
        trace(model, example)


def test_an_unknown_leaf_module_or_operator_is_named() -> None:
    with pytest.raises(NotTraceable, match="no such module"):
        trace(Around(), torch.randn(3, 4), leaf_modules=["decide"])
    graph = trace(nn.Sequential(nn.Linear(4, 4)), torch.randn(3, 4))
    with pytest.raises(NotTraceable, match="did you mean '0:0'"):
        graph.stage_program(["0:1"])


def test_inputs_of_another_kind_are_refused_when_they_come() -> None:
    class Flagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, double: bool = False, mask: Tensor | None = None) -> Tensor:
            return self.linear(x) * (2 if double else 1)

    graph = trace(Flagged(), (torch.randn(3, 4), True))
    x = torch.randn(5, 4)
    assert torch.equal(graph(x, double=True), graph.model(x, True))
    with pytest.raises(NotTraceable, match="double=True, which is a constant"):
        graph(x, False)
    with pytest.raises(NotTraceable, match="traced with the inputs"):
        graph(x, True, x)
    with pytest.raises(NotTraceable, match=r"shape \(any, 4\), and is given \(5, 3\)"):
        graph(torch.randn(5, 3), True)
    with pytest.raises(NotTraceable, match=r"given array\(.*; give it a tensor, as torch\.from_numpy"):
        graph(np.zeros((5, 4)), True)


def test_an_exception_names_its_operator() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.rows(x) * 2

    graph = trace(Looks(), torch.tensor([1, 2]))
    with pytest.raises(IndexError) as raised:
        graph(torch.tensor([1, 9]))
    assert raised.value.ropewalk_operator == "rows:0"  # type: ignore[attr-defined]
