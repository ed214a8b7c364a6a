"""Checkpoints that nobody here has written: each is read, or refused as damaged; nothing in it runs or waits.

Their digests fit, for whoever writes a checkpoint can also compute them.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import ropewalk as rw
from ropewalk.cli import app
from ropewalk.cli.checkpoint import describe, to_json
from ropewalk.errors import CheckpointCorrupt, PlanInvalid
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.tensor_header import ITEM_BYTES
from ropewalk.tracking.state_tree import MalformedTree
from ropewalk.training import checkpoint_files, load_module
from ropewalk.training.checkpoint import Checkpoint, read_manifest
from ropewalk.training.checkpoint_files import begin, saves
from ropewalk.training.checkpoint_parts import write_part
from ropewalk.training.manifests import file_names
from ropewalk.training.plain_state import decode
from ropewalk.training.sources import SafetensorsFiles
from ropewalk.training.tensor_file import dtype_of
from tests.other_users import MALLORY, as_user, needs_root

Facts = dict[str, Any]
WEIGHTS, STATE, VALUES = file_names("0.0")


def save(folder: Path) -> Path:
    """A model of one layer, with what an optimizer and a schedule keep."""
    kept = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3, 4)}
    state: Facts = {
        "parameters": {"weight": torch.ones(3, 4), "bias": torch.zeros(3)},
        "buffers": {"seen": torch.tensor(7)},
        "optimizer": {"weight": kept, "bias": {"betas": (0.9, 0.999), "kind": torch.bfloat16, 3: [float("inf"), None]}},
        "options": {"weight": {"lr": 0.1}, "bias": {"lr": 0.1}},
        "rates": {},
    }
    with begin(folder, 5) as writing:
        return writing.commit([write_part(writing.path, "0.0", state, {"a": [1]})], {"num_steps": 5, "seed": 0})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path / "run")


def manifest_of(saved: Path) -> Facts:
    return json.loads((saved / "manifest.json").read_bytes())["manifest"]


def seal(saved: Path, manifest: Facts | bytes) -> None:
    content = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    seal = f'{{"format":1,"sha256":"{hashlib.sha256(content).hexdigest()}","manifest":'.encode()
    (saved / "manifest.json").write_bytes(seal + content + b"}\n")


def replace(saved: Path, file: str, content: bytes) -> None:
    """Put another file there, of which the manifest says the right size and digest."""
    (saved / file).write_bytes(content)
    manifest = manifest_of(saved)
    record = manifest["parts"][0]["files"][file]
    record["size_bytes"], record["sha256"] = len(content), hashlib.sha256(content).hexdigest()
    seal(saved, manifest)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(3, 4)), nn.Parameter(torch.empty(3))
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.tensor(0))


def read_all(saved: Path) -> None:
    """Everything that reads a checkpoint: whatever is wrong with it is said in the same way."""
    checkpoint = read_manifest(saved)
    for name in checkpoint.names:
        checkpoint.take([name])
    state = checkpoint.whole_state()
    assert state.keys() >= {"parameters", "buffers", "optimizer", "options", "rates"}
    for part in checkpoint.parts:
        checkpoint.extra(part)
    checkpoint.verify()
    assert type(checkpoint.seed) is int
    with contextlib.suppress(ValueError):  # it is whole, and of another model
        load_module(saved, Layer())


def shown(saved: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["checkpoint", str(saved)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def refused(saved: Path, words: str) -> CheckpointCorrupt:
    with pytest.raises(CheckpointCorrupt, match=words) as caught:
        read_all(saved)
    return caught.value


def test_what_is_whole_is_read(whole: Path) -> None:
    read_all(whole)
    assert shown(whole)[0] == 0


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "/dev/zero",
        "../fifo",
        "../../../etc/passwd",
        "",
        ".",
        "..",
        "a\0b",
        "x" * 5000,
        "weights-0.0.safetensors/",
        "new",
    ],
)
def test_only_the_files_that_a_part_has_are_read(saved: Path, name: str) -> None:  # S23
    """`ropewalk checkpoint` once waited for ever at `/dev/zero` and at a pipe beside the checkpoint."""
    os.mkfifo(saved.parent / "fifo")
    manifest = manifest_of(saved)
    files = manifest["parts"][0]["files"]
    files[name] = files.pop(VALUES)
    seal(saved, manifest)
    refused(saved, "has the files")
    assert shown(saved)[0] == 1


class Bomb:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._folder,)


@pytest.mark.parametrize("file", ["manifest.json", WEIGHTS, STATE, VALUES])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_pickle_in_the_place_of_any_file_is_damage_and_not_loaded(  # S24
    saved: Path, tmp_path: Path, file: str, zipped: bool
) -> None:
    mark, pickled = tmp_path / "ran", tmp_path / "model.pt"
    torch.save(Bomb(mark), pickled, _use_new_zipfile_serialization=zipped)
    if file == "manifest.json":
        (saved / file).write_bytes(pickled.read_bytes())
    else:
        replace(saved, file, pickled.read_bytes())
    refused(saved, str(saved))
    shown(saved)
    disguised = tmp_path / "model.safetensors"
    shutil.copy(pickled, disguised)
    with pytest.raises(PlanInvalid, match=r"model\.safetensors is not a safetensors file"):
        SafetensorsFiles(disguised).take(["weight"])
    assert not mark.exists()
    torch.load(pickled, weights_only=False)
    assert mark.exists(), "the bomb is none"


@pytest.mark.parametrize("file", ["manifest.json", WEIGHTS, STATE, VALUES])
@pytest.mark.parametrize("kind", ["pipe", "link", "dangling", "folder", "socket"])
def test_what_is_no_file_is_neither_followed_nor_waited_for(saved: Path, file: str, kind: str) -> None:
    content = (saved / file).read_bytes()
    (saved / file).unlink()
    match kind:
        case "pipe":
            os.mkfifo(saved / file)
        case "link":
            (saved.parent / "elsewhere").write_bytes(content)
            (saved / file).symlink_to("../elsewhere")
        case "dangling":
            (saved / file).symlink_to("nowhere")
        case "folder":
            (saved / file).mkdir()
        case _:
            os.mknod(saved / file, stat.S_IFSOCK | 0o600)
    assert refused(saved, "it is not a file").path == str(saved / file)
    assert shown(saved)[0] == 1


def test_a_manifest_of_more_than_memory_is_not_read(saved: Path) -> None:
    os.truncate(saved / "manifest.json", 1 << 40)
    refused(saved, "a manifest has at most")


def test_values_of_more_than_memory_are_not_read(saved: Path) -> None:
    manifest = manifest_of(saved)
    manifest["parts"][0]["files"][VALUES]["size_bytes"] = 1 << 40
    seal(saved, manifest)
    os.truncate(saved / VALUES, 1 << 40)
    refused(saved, "that it has 1099511627776 bytes")


# --- what a manifest says ---------------------------------------------------------------------------------------------


def part(manifest: Facts) -> Facts:
    return manifest["parts"][0]


def weight(manifest: Facts) -> Facts:
    return part(manifest)["files"][WEIGHTS]["tensors"]["weight"]


CLAIMS: dict[str, tuple[Callable[[Facts], object], str]] = {
    "step": (lambda m: m.update(step=-1), "cannot be read"),
    "step of a word": (lambda m: m.update(step="5"), "cannot be read"),
    "shape": (lambda m: weight(m).update(shape=[4, 4]), "where its tensors need"),
    "negative shape": (lambda m: weight(m).update(shape=[-3, -4]), "cannot be read"),
    "huge shape": (lambda m: weight(m).update(shape=[1 << 60] * 60), "where its tensors need"),
    "endless shape": (lambda m: weight(m).update(shape=[1] * 100_000), "cannot be read"),
    "type": (lambda m: weight(m).update(dtype="I32"), "its head"),
    "unknown type": (lambda m: weight(m).update(dtype="load"), "is of the type 'load'"),
    "place": (lambda m: weight(m).update(begin=8), "has 48 bytes from 8 on"),
    "place behind the end": (lambda m: weight(m).update(begin=1 << 61), "and not"),
    "length": (lambda m: weight(m).update(size_bytes=0), "has 0 bytes from"),
    "sum": (lambda m: weight(m).update(crc32=1), "CRC-32 differs"),
    "digest": (lambda m: part(m)["files"][WEIGHTS].update(sha256="x" * 64), "its SHA-256 is 'xxx"),
    "no parameter": (lambda m: part(m).update(parameters=[]), "are not those in"),
    "another parameter": (lambda m: part(m).update(parameters=["weight", "other"]), "are not those in"),
    "parameter twice": (lambda m: part(m)["parameters"].append("weight"), "named twice"),
    "part twice": (lambda m: m["parts"].append(copy.deepcopy(part(m))), "named twice"),
    "another part": (lambda m: part(m).update(name="../0.0"), "has the files"),
    "tensors of values": (lambda m: part(m)["files"][VALUES].update(tensors={"a": weight(m)}), "that it holds tensors"),
    "no seed": (lambda m: m.update(facts={}), "its 'seed' is None"),
    "a seed that is none": (lambda m: m["facts"].update(seed=[1]), r"its 'seed' is \[1\]"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_manifest_that_says_what_no_file_of_ours_has_is_damaged(saved: Path, claim: str) -> None:  # S23
    change, words = CLAIMS[claim]
    manifest = manifest_of(saved)
    change(manifest)
    seal(saved, manifest)
    refused(saved, words)
    shown(saved)


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_manifest_that_is_nested_without_end_is_damaged_or_read(saved: Path, depth: int) -> None:
    content = json.dumps(manifest_of(saved)).encode()
    seal(saved, content.replace(b'"seed": 0', b'"seed": 0, "deep": ' + b"[" * depth + b"]" * depth))
    with contextlib.suppress(CheckpointCorrupt):
        read_all(saved)
    shown(saved)


def test_the_head_for_other_readers_is_that_of_the_manifest(saved: Path) -> None:  # S23
    """Whole by its digest, and by its CRC-32 what we would read; but another reader was told of other tensors."""
    content = (saved / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + length])
    head["weight"]["shape"] = [4, 3]
    encoded = json.dumps(head, separators=(",", ":")).encode().ljust(length)
    replace(saved, WEIGHTS, content[:8] + encoded + content[8 + length :])
    refused(saved, "its head")
    code, words = shown(saved)
    assert code == 1 and "its head" in words


def test_sizes_of_types_are_those_of_torch() -> None:
    for code, size in ITEM_BYTES.items():
        record: Any = type("Record", (), {"dtype": code})
        assert dtype_of(record).itemsize == size


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"$dtype": "load"},
        {"$dtype": "__builtins__"},
        {"$dtype": ["float32"]},
        {"$float": "1e3"},
        {"$float": 1},
        {"$tuple": "ab"},
        {"$tuple": {"a": 1}},
        {"$dict": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$dict": 7},
        {"$counter": "ab"},
        {"$unknown": 1},
        {"$tuple": [], "$dict": []},
        {"$tensor": 3},
        {"$tensor": "t", "order": [0]},
        {"$tensor": "t", "order": [1, 1]},
        {"$tensor": "t", "order": [True, False]},
        {"$tensor": "t", "order": "01"},
        {"$tensor": "t", "also": 1},
    ],
)
def test_values_are_built_from_what_was_saved_and_nothing_else(value: Any) -> None:
    """`{"$dtype": "load"}` once gave `torch.load` itself."""
    with pytest.raises(MalformedTree):
        decode({"a": [value]}, lambda name: torch.zeros(2, 3))


@pytest.mark.parametrize(
    "values",
    [
        b"[]",
        b"{}",
        b'{"optimizer":{"weight":7},"options":{},"rates":{},"extra":0,"values":[1]}',
        b'{"optimizer":{"weight":-1},"options":{},"rates":{},"extra":0,"values":[1]}',
        b'{"optimizer":{},"options":{},"rates":{},"extra":0,"values":[{"$tensor":"no such"}]}',
        b'{"optimizer":{},"options":{},"rates":{},"extra":0,"values":['
        + b'{"$tuple":[' * 50_000
        + b"]}" * 50_000
        + b"]}",
        b'{"optimizer":{},"options":{},"rates":{},"extra":0,"values":[' + b"[" * 400 + b"]" * 400 + b",\xff]}",
    ],
    ids=lambda value: str(value)[:60],
)
def test_values_that_are_none_of_ours_are_damaged(saved: Path, values: bytes) -> None:
    replace(saved, VALUES, values)
    refused(saved, f"({VALUES}|{STATE}) is damaged")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[rw.Trainer, Path]]:
    """A trainer that loads what is given to it, and a checkpoint of its own."""
    model, batch = nn.Linear(4, 4), (torch.ones(8, 4), torch.zeros(8, 4))
    options: Facts = {"inline": True, "micro_batches": 2, "example_inputs": batch[:1]}
    optimizer = OptimizerMaker(
        lambda own: torch.optim.Adam(own, 0.1), lambda made: torch.optim.lr_scheduler.MultiStepLR(made, [1, 2])
    )
    with rw.Trainer(model, nn.MSELoss(), optimizer, 1, **options) as trainer:
        trainer.step(*batch)
        folder = tmp_path_factory.mktemp("trained")
        trainer.save(folder).wait()
        yield trainer, folder


def without(tree: Facts, kind: str, key: str) -> None:
    for number in set(tree[kind].values()):
        del tree["values"][number][key]


def instead(tree: Facts, kind: str, value: Any) -> None:
    for number in set(tree[kind].values()):
        tree["values"][number] = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: instead(tree, "options", [1]), r"options of 'weight' is \[1\]"),
        (lambda tree: instead(tree, "optimizer", None), "optimizer of 'weight' is None"),
        (lambda tree: without(tree, "optimizer", "step"), r"the optimizer Adam cannot go on .*KeyError\('step'\)"),
        (lambda tree: tree.update(rates={"weight": tree["extra"]}), "rates of 'weight' is None"),
        (lambda tree: tree["rates"].pop("weight"), "the lr_schedule MultiStepLR cannot go on"),
        (lambda tree: tree["options"].pop("weight"), "'weight' is trained here, and was not"),
    ],
)
def test_a_trainer_takes_up_what_fits_its_optimizer_and_says_what_does_not(
    trained: tuple[rw.Trainer, Path], tmp_path: Path, change: Callable[[Facts], object], words: str
) -> None:
    trainer, folder = trained
    saved = shutil.copytree(saves(folder)[0], tmp_path / "0001-step-1")
    (values,) = saved.glob("state-*.json")
    tree = json.loads(values.read_bytes())
    change(tree)
    replace(saved, values.name, json.dumps(tree).encode())
    with pytest.raises((CheckpointCorrupt, ValueError), match=words):
        trainer.load(saved)
    trainer.load(folder)


# --- anything ---------------------------------------------------------------------------------------------------------

ODD: Any = st.one_of(
    st.sampled_from(
        [None, -1, 0, 1, 2**31, 2**64, 1e300, True, "", "/dev/zero", "../x", "$dtype", [], {}, [[]], "a\0"]
    ),
    st.text(max_size=3),
    st.integers(-5, 5),
)


def places_in(tree: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [here, *(place for key, value in inside for place in places_in(value, (*here, key)))]


def changed(tree: Any, data: st.DataObject) -> Any:
    """Another tree: somewhere a value, a key, or an entry more or less."""
    *way, last = ("", *data.draw(st.sampled_from(places_in(tree)[1:])))
    root: Any = {"": tree}
    at = root
    for key in way:
        at = at[key]
    match data.draw(st.sampled_from(["value", "key", "remove", "swap"])):
        case "key" if isinstance(at, dict):
            at[str(data.draw(ODD))] = at.pop(last)
        case "remove":
            del at[last]
        case "swap":
            other = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at)))))
            at[last], at[other] = at[other], at[last]
        case _:
            at[last] = data.draw(ODD)
    return root[""]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), target=st.sampled_from(["manifest.json", VALUES]))
def test_whatever_a_checkpoint_says_it_is_whole_or_damaged(whole: Path, data: st.DataObject, target: str) -> None:
    """Any changes of its tree, with digests that fit: one kind of error, and none that says nothing."""
    folder = whole.parent / "fuzzed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    tree = manifest_of(folder) if target == "manifest.json" else json.loads((folder / VALUES).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        if isinstance(tree, dict) and tree:
            tree = changed(tree, data)
    if target == "manifest.json":
        seal(folder, tree)
    else:
        replace(folder, VALUES, json.dumps(tree).encode())
    with contextlib.suppress(CheckpointCorrupt):
        path, manifest = checkpoint_files.read(folder)
        assert json.dumps(to_json(path, manifest, [], [])) and list(describe(path, manifest, [], None))
        read_all(folder)


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_folder_that_we_make_is_ours_alone_and_nobody_else_ever_writes_to_a_checkpoint(
    tmp_path: Path, umask: int
) -> None:  # S12
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    before = os.umask(umask)
    try:
        ours, shared = save(tmp_path / "above" / "ours"), save(tmp_path / "open")
    finally:
        os.umask(before)

    def modes(saved: Path) -> set[int]:
        return {stat.S_IMODE(each.stat().st_mode) for each in saved.iterdir()} | {stat.S_IMODE(saved.stat().st_mode)}

    assert modes(ours) == {0o600, 0o700}
    assert [stat.S_IMODE(each.stat().st_mode) for each in ours.parents[:2]] == [0o700, 0o700]
    assert modes(shared) == {0o644 & ~umask, 0o755 & ~umask}, "whoever may enter the folder may read"


@needs_root
def test_what_another_user_puts_into_the_folder_costs_none_of_our_checkpoints(everybodys: Path) -> None:
    """Its number made it one of those that are kept, so that our own were removed."""

    def by_mallory() -> None:
        for number in (9998, 9999):
            (everybodys / f"{number}-step-1").mkdir()
        os.mkfifo(everybodys / "10000-step-1")

    as_user(MALLORY, by_mallory)
    first, second, third = (save(everybodys) for _ in range(3))
    assert [path for path in saves(everybodys) if path.stat().st_uid == 0] == [third, second]
    assert not first.exists()
    read_all(second)


@needs_root
@pytest.mark.parametrize("name", ["0001-step-1.tmp", "0000-step-1", "0001-step-0.tmp"], ids=["left", "old", "begun"])
def test_a_folder_of_ours_that_another_user_renames_is_not_removed_as_a_checkpoint(everybodys: Path, name: str) -> None:
    """Whoever may write to a folder may rename what is in it, and had us delete what they could not."""
    everybodys.chmod(0o777)
    (everybodys / "thesis" / "figures").mkdir(parents=True)
    for file in ("chapter.tex", "figures/plot.png"):
        (everybodys / "thesis" / file).write_text("x")

    def by_mallory() -> None:
        if (everybodys / name).exists():
            (everybodys / name).rename(everybodys / "away")
        (everybodys / "thesis").rename(everybodys / name)

    with checkpoint_files.begin(everybodys, 0):
        as_user(MALLORY, by_mallory)
    for _ in range(3):
        save(everybodys)
    assert (everybodys / name / "chapter.tex").exists() and (everybodys / name / "figures" / "plot.png").exists()
    assert len([path for path in saves(everybodys) if path.name != name]) == 2


def test_a_file_with_the_name_of_a_checkpoint_is_none(saved: Path) -> None:
    (saved.parent / "0099-step-5").write_text("")
    assert saves(saved.parent) == [saved]
    assert checkpoint_files.read(saved.parent)[0] == saved
    assert isinstance(read_manifest(saved.parent), Checkpoint)
