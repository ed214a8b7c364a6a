"""`ropewalk checkpoint`: list what a trainer has saved, and verify each byte of it.

ropewalk checkpoint runs/gpt
ropewalk checkpoint runs/gpt/0002-step-20 --json
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit
from rich.console import Console

from ropewalk.cli.command_line import PanelCommand, argument, failure
from ropewalk.errors import CheckpointCorrupt
from ropewalk.escaping import escaped_lines
from ropewalk.quantities import shown_size
from ropewalk.text_table import text_table
from ropewalk.training import checkpoint_files
from ropewalk.training.manifests import Manifest, PartRecord, TensorRecord, check_digest


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A parameter or a buffer, as a row of the table."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    optimizer_bytes: int
    """The bytes of the tensors that its optimizer keeps for it."""
    part: str
    """The part of the checkpoint that has it."""


@click.command(cls=PanelCommand)
@argument("folder", type=click.Path(path_type=Path), help="A trainer's folder of checkpoints, or one of them.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--quick", is_flag=True, help="Do not read the files to check their digests.")
def checkpoint(folder: Path, as_json: bool, quick: bool) -> None:
    """List the contents of a trainer's checkpoint, and check that every byte is as it was written.

    Exit code 1 if something is damaged, 2 if there is no checkpoint.
    """
    try:
        path, manifest = checkpoint_files.read(folder)
    except CheckpointCorrupt as error:
        notes: list[str] = getattr(error, "__notes__", [])
        raise failure("\n".join([str(error), *notes]), 1) from None
    except OSError as error:
        raise failure(str(error)) from None
    if quick:
        problems = None
    else:
        with Console(stderr=True, highlight=False).status("reading every file"):
            problems = list(_problems(path, manifest))
    others = [one for one in checkpoint_files.saves(path.parent) if one != path]
    click.echo(
        json.dumps(to_json(path, manifest, others, problems), indent=2)
        if as_json
        else escaped_lines("\n".join(describe(path, manifest, others, problems)))
    )
    if problems:
        raise Exit(1)


def to_json(path: Path, manifest: Manifest, others: list[Path], problems: list[str] | None) -> dict[str, Any]:
    """Return the report for programs; `whole` is null if the files were not checked, sizes are in bytes."""
    return {
        "path": str(path),
        "step": manifest.step,
        "whole": None if problems is None else not problems,
        "problems": problems or [],
        "facts": manifest.facts,
        "tensors": [asdict(one) for one in tensors(manifest)],
        "files": [
            {"name": name, "part": part.name, "size_bytes": file.size_bytes, "sha256": file.sha256}
            for part in manifest.parts
            for name, file in part.files.items()
        ],
        "others": [str(one) for one in others],
    }


def describe(path: Path, manifest: Manifest, others: list[Path], problems: list[str] | None) -> Iterator[str]:
    """Yield the lines of the report for users."""
    found = tensors(manifest)
    files = [file for part in manifest.parts for file in part.files.values()]
    weights, optimizer = (sum(sizes) for sizes in ((t.size_bytes for t in found), (t.optimizer_bytes for t in found)))
    kinds = Counter(one.kind for one in found)
    yield (
        f"{path}: step {manifest.step}, {kinds['parameter']} parameters and {kinds['buffer']} buffers of "
        f"{shown_size(weights)}, optimizer {shown_size(optimizer)}"
    )
    for key, value in manifest.facts.items():
        yield f"{key}: {value if isinstance(value, str) else json.dumps(value)}"
    yield ""
    rows = [("name", "kind", "dtype", "shape", "size", "optimizer", "part")]
    for one in found:
        shape = "x".join(map(str, one.shape)) or "one number"
        kept = shown_size(one.optimizer_bytes) if one.optimizer_bytes else "-"
        rows.append((one.name, one.kind, one.dtype, shape, shown_size(one.size_bytes), kept, one.part))
    yield from text_table(rows)
    yield ""
    if others:
        yield f"also there: {', '.join(one.name for one in others)}"
    size = f"{len(files)} files of {len(manifest.parts)} parts, {shown_size(sum(file.size_bytes for file in files))}"
    match problems:
        case None:
            yield f"{size}: not read"
        case []:
            yield f"{size}: every byte is as it was written"
        case _:
            yield f"{size}: damaged"
            yield from problems


def tensors(manifest: Manifest) -> list[SavedTensor]:
    """Return all parameters and buffers, by name."""
    return sorted((one for part in manifest.parts for one in _tensors(part)), key=lambda one: one.name)


def _tensors(part: PartRecord) -> Iterator[SavedTensor]:
    weights: dict[str, TensorRecord] = {}
    optimizer_bytes = Counter[str]()
    for file, record in part.files.items():
        if file.startswith("weights-"):
            weights |= record.tensors
            continue
        for key, tensor in record.tensors.items():
            kind, _, place = key.partition(".")
            while kind == "optimizer" and place and place not in part.parameters:  # it ends in "exp_avg" or the like
                place = place.rpartition(".")[0]
            optimizer_bytes[place if kind == "optimizer" else ""] += tensor.size_bytes
    for kind, names in (("parameter", part.parameters), ("buffer", part.buffers)):
        for name in names:
            one = weights[name]
            yield SavedTensor(name, kind, one.dtype, one.shape, one.size_bytes, optimizer_bytes[name], part.name)


def _problems(path: Path, manifest: Manifest) -> Iterator[str]:
    for part in manifest.parts:
        for name, record in part.files.items():
            try:
                check_digest(path, name, record)
            except (CheckpointCorrupt, OSError) as error:
                yield str(error)
