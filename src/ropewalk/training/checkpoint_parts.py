"""The part of a checkpoint that one worker writes: the training state of its stages, without a pickle.

    weights-PART.safetensors    parameters and buffers, under the names of the user's model
    state-PART.safetensors      tensors of the optimizer, its options, learning rate schedules, and extra
    state-PART.json             the rest of these

The state has the form that `pipeline.stages.saved_training` gives it. It is read in `checkpoint`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.training.manifests import FileRecord, PartRecord, file_names, write_file
from ropewalk.training.plain_state import StateEncoder
from ropewalk.training.tensor_file import check_writable, write_tensors

WEIGHTS = ("parameters", "buffers")
"""The keys of a state that map to tensors with bytes of their own, and those that map to values of parameters."""
OF_PARAMETERS = ("optimizer", "options", "rates")
KINDS = (*WEIGHTS, *OF_PARAMETERS)


def write_part(folder: Path | str, name: str, state: Mapping[str, Any], extra: Any = None) -> PartRecord:
    """Write the state of one worker; returns when it is on the disk. May be called by any thread.

    Args:
        folder: the folder of the checkpoint that is being written.
        name: the name of the part; every writer has its own.
        state: in the form of `saved_training.taken`, with names that no other part holds; must not change meanwhile.
        extra: other state of this worker, such as that of its exchange: tensors and plain values.

    Returns:
        The record of the part for the manifest.

    Raises:
        TypeError: the state holds a value that cannot be written without a pickle; nothing was written.
        OSError: the part cannot be written, or was written before; nothing of it is left.
    """
    weights = {name: tensor for kind in WEIGHTS for name, tensor in state[kind].items()}
    for one, tensor in weights.items():
        check_writable(tensor, f"{'parameter' if one in state['parameters'] else 'buffer'} {one!r}")
    encoder = StateEncoder()
    values = _encoded(encoder, state, extra)
    weights_file, tensors_file, values_file = file_names(name)
    made: list[Path] = []

    def made_here(file: str) -> Path:
        made.append(Path(folder) / file)
        return made[-1]

    try:
        files = {
            weights_file: write_tensors(made_here(weights_file), weights),
            tensors_file: write_tensors(made_here(tensors_file), encoder.tensors),
            values_file: FileRecord(*write_file(made_here(values_file), [values]), {}),
        }
    except BaseException as error:
        for path in made if not isinstance(error, FileExistsError) else []:
            path.unlink(missing_ok=True)  # a full disk needs the space
        error.add_note(f"Part {name!r} of the checkpoint in {folder} was not written.")
        raise
    return PartRecord(name, tuple(state["parameters"]), tuple(state["buffers"]), files)


def _encoded(encoder: StateEncoder, state: Mapping[str, Any], extra: Any) -> bytes:
    """Encode a part as JSON. Equal values are stored once, because parameters of a group share options and rates."""
    numbers: dict[str, int] = {}

    def number(value: Any, place: str) -> int:
        text = json.dumps(encoder.encode(value, place), allow_nan=False, separators=(",", ":"))
        return numbers.setdefault(text, len(numbers))

    found: dict[str, Any] = {
        kind: {name: number(value, f"{kind}.{name}") for name, value in state[kind].items()} for kind in OF_PARAMETERS
    }
    found["extra"] = number(extra, "extra")
    return f'{json.dumps(found)[:-1]},"values":[{",".join(numbers)}]}}'.encode()


__all__ = ["KINDS", "OF_PARAMETERS", "WEIGHTS", "write_part"]
