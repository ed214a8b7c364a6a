"""Checkpoints: a training that goes on from one equals the undisturbed run, with any cut, and damage is seen."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.errors import CheckpointCorrupt
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.checkpoint import load_module, read_manifest, save
from ropewalk.training.checkpoint_files import begin
from ropewalk.training.checkpoint_parts import KINDS, write_part
from tests.pipeline.played_plans import even_cut, plan_of


def only(state: Mapping[str, Any], names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return a state reduced to these parameters and buffers."""
    return {kind: {name: value for name, value in state[kind].items() if name in names} for kind in KINDS}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(before)


def model_of(width: int = 6) -> Any:
    """Convolution in channels_last, batch normalisation, dropout, and a bias that is not trained."""
    model: Any = nn.Sequential(
        nn.Conv2d(2, width, 3),
        nn.BatchNorm2d(width),
        nn.Dropout(0.3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * width, width),
        nn.Tanh(),
        nn.Linear(width, 3),
    )
    model[5].bias.requires_grad_(False)
    return model.to(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    torch.manual_seed(0)
    return trace(model_of(), (torch.randn(4, 2, 4, 4),))


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Two groups, of weights and of biases."""
    weights = [one for one in parameters if one.dim() > 1]
    others = [one for one in parameters if one.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others}]
    return torch.optim.AdamW(groups, 1e-2, weight_decay=0, amsgrad=True)


def milestones(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Its state has a Counter with numbers as keys."""
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5)


def player_of(graph: ModelGraph, schedule: str = "one_f_one_b", num_stages: int = 3, **options: Any) -> LocalExecutor:
    replicas = options.pop("replicas", 1)
    plan = plan_of(graph, even_cut(graph, num_stages), micro_batches=3, replicas=replicas)
    optimizer = OptimizerMaker(options.pop("optimizer", adam), options.pop("lr_schedule", milestones))
    chosen: dict[str, Any] = {"seed": 5, **options}
    return LocalExecutor(graph, functional.cross_entropy, optimizer, plan, schedule=schedule, **chosen)


def batches(num: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(7, 2, 4, 4), torch.randint(3, (7,))) for _ in range(num)]


def steps(player: LocalExecutor, data: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    metrics = [player.step(x, y) for x, y in data]
    player.drain()
    return [loss for one in metrics for loss in one.losses]


def assert_same(found: Any, expected: Any, path: str = "state") -> None:
    """Equal to the last bit, and in types."""
    assert type(found) is type(expected), path
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key in expected:
            assert_same(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        for index, one in enumerate(expected):
            assert_same(found[index], one, f"{path}.{index}")
    elif isinstance(expected, Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected), path
    else:
        assert found == expected, path


def saved_in_parts(folder: Path, player: LocalExecutor, num_parts: int, **options: Any) -> Path:
    """As stage processes do it: each name in one of the parts, all written at once."""
    state = player.state_dict()
    names = [*state["parameters"], *state["buffers"]]
    with begin(folder, player.num_steps, **options) as writing:
        with ThreadPoolExecutor(num_parts) as threads:
            parts = [
                threads.submit(write_part, writing.path, f"{n}.0", only(state, names[n::num_parts]), {"rank": n})
                for n in range(num_parts)
            ]
        facts = {"num_steps": state["num_steps"], "seed": state["seed"]}
        return writing.commit([part.result() for part in parts], facts)


# --- there and back ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_was_written_long_ago_is_read() -> None:
    """Nothing in this folder may ever be written anew: others have such files."""
    checkpoint = read_manifest(Path(__file__).parent / "checkpoint_of_format_1")
    checkpoint.verify()
    state = checkpoint.whole_state()
    torch.manual_seed(7)
    exp_avg, weight, half = torch.randn(3, 4), torch.randn(3, 4), torch.randn(5).bfloat16()
    option = {"lr": 0.1}
    assert_same(
        state,
        {
            "parameters": {"weight": weight, "half": half, "n\u00e4m\u00e9 \N{GRINNING FACE}": torch.zeros(3)},
            "buffers": {
                "seen": torch.tensor(7),
                "none": torch.zeros(0, 3),
                "mask": torch.tensor([True, False]),
            },
            "optimizer": {
                "weight": {"step": torch.tensor(1.0), "exp_avg": exp_avg},
                "half": {"betas": (0.9, 0.999), "kind": torch.bfloat16, 3: [float("inf"), None]},
            },
            "options": {"weight": option, "half": option, "n\u00e4m\u00e9 \N{GRINNING FACE}": option},
            "rates": {},
            "num_steps": 5,
            "seed": 0,
        },
    )
    assert checkpoint.extra("0.0") == {"a": [1]}


@pytest.mark.parametrize("num_parts", [1, 4])
def test_what_a_player_has_learnt_comes_back_to_the_last_bit(graph: ModelGraph, tmp_path: Path, num_parts: int) -> None:
    player = player_of(graph)
    steps(player, batches(2))
    saved_in_parts(tmp_path, player, num_parts)
    checkpoint = read_manifest(tmp_path)
    checkpoint.verify()
    assert_same(checkpoint.whole_state(), player.state_dict())
    assert checkpoint.step == 2 and checkpoint.facts == {"num_steps": 2, "seed": 5}


@pytest.mark.parametrize(
    ("schedule", "num_stages", "replicas"),
    [
        ("one_f_one_b", 2, 1),
        ("one_f_one_b", 1, 1),
        ("gpipe", 2, 1),
        ("pipedream", 3, 1),
        ("one_f_one_b", 3, [2, 1, 3]),
    ],
)
def test_a_training_goes_on_from_a_checkpoint_as_if_it_had_not_been_stopped(
    graph: ModelGraph, tmp_path: Path, schedule: str, num_stages: int, replicas: Any
) -> None:
    data = batches(5)
    unbroken = player_of(graph, schedule, replicas=replicas)
    steps(unbroken, data[:3])
    saved_in_parts(tmp_path, unbroken, 3)
    expected = steps(unbroken, data[3:])

    again = player_of(graph, schedule, num_stages, replicas=replicas, seed=0)
    again.load_state_dict(read_manifest(tmp_path).whole_state())
    assert again.num_steps == 3
    assert all(map(torch.equal, steps(again, data[3:]), expected))
    assert_same(again.state_dict(), unbroken.state_dict())


def test_another_schedule_and_other_replicas_go_on_from_the_same_state(graph: ModelGraph, tmp_path: Path) -> None:
    data = batches(4)
    first = player_of(graph, "pipedream")
    steps(first, data[:2])
    saved_in_parts(tmp_path, first, 3)
    for schedule, num_stages, replicas in (("gpipe", 2, [2, 3]), ("one_f_one_b", 3, 1), ("pipedream_2bw", 3, 1)):
        loaded, given = (player_of(graph, schedule, num_stages, replicas=replicas) for _ in range(2))
        loaded.load_state_dict(read_manifest(tmp_path).whole_state())
        given.load_state_dict(first.state_dict())
        assert all(map(torch.equal, steps(loaded, data[2:]), steps(given, data[2:])))
        assert_same(loaded.state_dict(), given.state_dict())


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, torch.tensor(0.1), momentum=0.9, foreach=False)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "a rate that is a tensor": sgd,
    "steps that are tensors, None as a limit": lambda parameters: torch.optim.Adafactor(parameters, 1e-2),
    "numbers as state": lambda parameters: torch.optim.ASGD(parameters, 1e-2),
    "signs": lambda parameters: torch.optim.Rprop(parameters, 1e-2),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_states_and_options_of_all_kinds_come_back(
    graph: ModelGraph, tmp_path: Path, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    data = batches(4)
    unbroken = player_of(graph, optimizer=make, lr_schedule=None)
    steps(unbroken, data[:2])
    saved_in_parts(tmp_path, unbroken, 2)
    state = read_manifest(tmp_path).whole_state()
    assert_same(state, unbroken.state_dict())
    again = player_of(graph, optimizer=make, lr_schedule=None)
    again.load_state_dict(state)
    assert all(map(torch.equal, steps(again, data[2:]), steps(unbroken, data[2:])))


def test_a_stage_reads_its_own_names_and_no_others(graph: ModelGraph, tmp_path: Path) -> None:
    """What else is damaged does not concern it."""
    player = player_of(graph)
    steps(player, batches(1))
    path = saved_in_parts(tmp_path, player, 4)
    checkpoint = pickle.loads(pickle.dumps(read_manifest(tmp_path)))
    names = ["5.weight", "1.running_mean", "5.bias"]
    strangers = [part for part in checkpoint.parts if not set(names) & set(names_of(checkpoint, part))]
    assert strangers
    for file in (file for stranger in strangers for file in path.glob(f"*-{stranger}.*")):
        file.write_bytes(b"")
    expected = only(player.state_dict(), names)
    assert set(expected["optimizer"]) == {"5.weight"}
    assert_same(checkpoint.load(names), expected)
    assert_same(checkpoint.load([]), only(player.state_dict(), []))
    assert_same(checkpoint.take(["5.bias"]), {"5.bias": player.state_dict()["parameters"]["5.bias"]})
    with pytest.raises(CheckpointCorrupt):
        checkpoint.whole_state()


def names_of(checkpoint: Any, part: str) -> list[str]:
    (found,) = (one for one in checkpoint.manifest.parts if one.name == part)
    return [*found.parameters, *found.buffers]


def test_what_a_worker_has_beside_the_state_comes_back_by_its_part(graph: ModelGraph, tmp_path: Path) -> None:
    player = player_of(graph)
    saved_in_parts(tmp_path, player, 2)
    checkpoint = read_manifest(tmp_path)
    assert checkpoint.parts == ("0.0", "1.0")
    assert checkpoint.extra("1.0") == {"rank": 1}
    with pytest.raises(ValueError, match=r"has no part '2\.0'; its parts are '0\.0', '1\.0'"):
        checkpoint.extra("2.0")


def test_an_exchange_is_kept_beside_the_state(tmp_path: Path) -> None:
    kept = {"step": 3, "size": 2, "state": {"memory": {"a": torch.randn(3)}, "round": (1, 2)}}
    state = {"parameters": {}, "buffers": {}, "optimizer": {}, "options": {}, "rates": {}}
    with begin(tmp_path, 3) as writing:
        writing.commit([write_part(writing.path, "0.1", state, kept)], {})
    assert_same(read_manifest(tmp_path).extra("0.1"), kept)


def test_a_player_is_saved_in_one_line(graph: ModelGraph, tmp_path: Path) -> None:
    player = player_of(graph)
    for _ in range(3):
        steps(player, batches(1))
        save(tmp_path, player.state_dict(), keep=2, schedule="one_f_one_b")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0002-step-2", "0003-step-3"]
    assert_same(read_manifest(tmp_path).whole_state(), {**player.state_dict(), "schedule": "one_f_one_b"})


def test_weights_lie_under_the_names_of_the_model_for_any_reader(graph: ModelGraph, tmp_path: Path) -> None:
    player = player_of(graph)
    found = load_file(save(tmp_path, player.state_dict()) / "weights-whole.safetensors")
    assert_same(found, dict(player.to_module().state_dict()))


# --- for inference ----------------------------------------------------------------------------------------------------


def test_a_model_gets_the_weights_and_gives_the_same_outputs(graph: ModelGraph, tmp_path: Path) -> None:
    player = player_of(graph)
    steps(player, batches(3))
    saved_in_parts(tmp_path, player, 3)
    x = torch.randn(5, 2, 4, 4)
    model: Any = load_module(tmp_path, model_of()).eval()
    assert torch.equal(model(x), player.to_module().eval()(x))
    assert not model[5].bias.requires_grad
    half: Any = load_module(tmp_path, model_of().bfloat16())
    assert torch.equal(half[5].weight, model[5].weight.bfloat16())


class Tied(nn.Module):
    """The last layer has the weight of the first; where it looks is known without training."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(7), persistent=False)
        self.register_buffer("unused", torch.full((2,), 3.0))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens)) * self.mask


class Turns(nn.Module):
    """Adds a table for places, for texts of some length, that is in no state_dict."""

    def __init__(self, length: int, *, persistent: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.table: Tensor
        table = torch.arange(4.0 * length).view(length, 4)
        self.register_buffer("table", table, persistent=persistent)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) + self.table[: tokens.shape[1]]


def test_a_table_for_longer_texts_that_is_not_persistent_stays_as_the_model_has_it(tmp_path: Path) -> None:
    # As with load_state_dict, which knows no such buffers: the model was refused as another one.
    player = player_of(trace(Turns(5), torch.randint(7, (4, 3))), num_stages=1)
    save(tmp_path, player.state_dict())
    longer: Any = load_module(tmp_path, Turns(9))
    trained: Any = player.to_module()
    assert torch.equal(longer.embedding.weight, trained.embedding.weight)
    assert torch.equal(longer.table, Turns(9).table)
    with pytest.raises(ValueError, match=r"buffer 'table' is .* of shape .5, 4."):
        load_module(tmp_path, Turns(9, persistent=True))


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    model = Tied()
    graph = trace(model, (torch.randint(7, (4,)),))
    player = player_of(graph, num_stages=2)
    steps(player, [(torch.randint(7, (6,)), torch.randint(7, (6,)))])
    save(tmp_path, player.state_dict())
    assert len(read_manifest(tmp_path).parameters) == 1
    other: Any = load_module(tmp_path, Tied())
    assert other.head.weight is other.embedding.weight
    tokens = torch.randint(7, (5,))
    assert torch.equal(other(tokens), player.to_module()(tokens))
    assert other.unused.tolist() == [3.0, 3.0]


def test_a_checkpoint_of_another_model_changes_nothing(graph: ModelGraph, tmp_path: Path) -> None:
    save(tmp_path, player_of(graph).state_dict())
    longer, shorter = model_of().append(nn.Linear(3, 2)), model_of()[:-1]
    plain = nn.Sequential(*model_of())
    plain[1] = nn.BatchNorm2d(6, track_running_stats=False)
    for model, message in (
        (
            model_of(7),
            r"parameter '5.weight' is torch.float32 of shape \(6, 24\) in .*, and .* \(7, 28\) in the",
        ),
        (longer, r"parameter '8.weight' of Sequential is not in .*; give strict=False to leave it as it is"),
        (shorter, r"is of another model: Sequential has no parameter '7.weight'"),
        (plain, r"is of another model: Sequential has no buffer '1.running_mean'"),
        (model_of().to("meta"), r"parameter '.*' is on the device meta; call model.to_empty"),
    ):
        before = {name: one.clone() for name, one in model.state_dict().items()}
        with pytest.raises(ValueError, match=message):
            load_module(tmp_path, model)
        if not model[0].weight.is_meta:
            assert_same(dict(model.state_dict()), before)
    load_module(tmp_path, longer, strict=False)
    assert_same(longer[0].weight.data, read_manifest(tmp_path).take(["0.weight"])["0.weight"])


def test_a_model_is_compared_before_anything_is_read(graph: ModelGraph, tmp_path: Path) -> None:
    save(tmp_path, player_of(graph).state_dict())
    checkpoint = read_manifest(tmp_path)
    with torch.device("meta"):
        model = model_of()
    own, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    checkpoint.check_fits(own, buffers)
    for parameters, message in (
        ({**own, "8.weight": own["7.weight"]}, "1 parameters do not fit, '8.weight' is in the model, but not in it"),
        ({"0.weight": own["0.weight"]}, "'0.bias' is in it, but not in the model"),
        ({**own, "0.bias": own["0.bias"].double()}, r"is torch.float32 of shape \(6,\) in .*, and torch.float64 of"),
        ({**own, "0.bias": own["0.bias"][:2]}, r"shape \(6,\) in .*, and torch.float32 of shape \(2,\) in the model"),
    ):
        with pytest.raises(ValueError, match=message):
            checkpoint.check_fits(parameters, buffers)
    with pytest.raises(ValueError, match=r"3 buffers do not fit, '1\.num_batches_tracked' is in it"):
        checkpoint.check_fits(own, {})
    with pytest.raises(ValueError, match=r"of another model: it has no '8\.weight' \(1 of 2 names are not in it\)"):
        checkpoint.load(["8.weight", "7.weight"])


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_what_cannot_be_written_is_named_and_leaves_nothing(graph: ModelGraph, tmp_path: Path) -> None:
    state = player_of(graph).state_dict()
    wrong_rate = {**state, "rates": {**state["rates"], "7.bias": {"at": [print]}}}
    wrong_weight = {**state, "parameters": {**state["parameters"], "7.bias": torch.zeros(2, dtype=torch.complex128)}}
    for wrong, message in (
        (wrong_rate, r"rates\.7\.bias\.at\.0 is <built-in function print> of the class builtin"),
        (wrong_weight, r"parameter '7\.bias' is a tensor of torch\.complex128"),
    ):
        with pytest.raises(TypeError, match=message):
            save(tmp_path, wrong)
    assert list(tmp_path.iterdir()) == []


def test_two_writers_cannot_write_one_part(tmp_path: Path) -> None:
    state = {"parameters": {"a": torch.ones(1)}, "buffers": {}, "optimizer": {}, "options": {}, "rates": {}}
    with begin(tmp_path, 1) as writing:
        part = write_part(writing.path, "0.0", state)
        with pytest.raises(FileExistsError):
            write_part(writing.path, "0.0", state)
        writing.commit([part], {})
    read_manifest(tmp_path).verify()


# --- damaged ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(graph: ModelGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("saved"), player_of(graph, num_stages=2).state_dict())


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_or_missing_byte_in_any_file_is_seen_and_the_file_named(saved: Path, data: st.DataObject) -> None:
    before = read_manifest(saved).whole_state()
    path = data.draw(st.sampled_from(sorted(saved.iterdir())))
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    is_cut = data.draw(st.booleans())
    path.write_bytes(content[:at] if is_cut else changed)
    caught: CheckpointCorrupt | None = None
    try:
        state = read_manifest(saved).whole_state()
        # What decides nothing here is seen by whoever looks at every byte: headers for other readers, a last space.
        assert_same(state, before)
        assert not is_cut or content[at:].isspace()
        read_manifest(saved).verify()
        assert path.name == "manifest.json" and content[at:].isspace()
    except CheckpointCorrupt as error:
        caught = error
    finally:
        path.write_bytes(content)
    assert caught is None or (caught.path == str(path) and str(path) in str(caught))
