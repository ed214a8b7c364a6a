"""The device on which a stage computes: the CPU, or one of the GPUs that its process sees.

Between processes, tensors pass through CPU memory (`links`); snapshots, states and checkpoints are there too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.tracing.trees import map_tensors

_KINDS = ("cpu", "cuda")


def kind_of_device(given: str | torch.device | None, tensors: Iterable[Tensor] = ()) -> str:
    """Return the meaning of a trainer's `device`, as text that can be sent: "cpu", "cuda", "cuda:1".

    Args:
        given: the user's setting; None: the kind of device that the model's tensors are on.
        tensors: the tensors of the model; those on meta count as on the CPU.

    Raises:
        PlanInvalid: `given` names no device, or one of a kind that stages cannot compute on.
    """
    if given is None:
        return "cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu"
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise PlanInvalid(
            f'device is "cpu", "cuda", or one GPU for all stages such as "cuda:1", not {given!r}'
        ) from error
    if device.type not in _KINDS:
        raise PlanInvalid(f"stages compute on {' or '.join(_KINDS)}, not on {str(device)!r}")
    return str(device)


def stage_device(kind: str, number: int) -> torch.device:
    """Return the device of a worker, in its own process.

    "cuda" distributes the GPUs that the process sees by the worker's device in the plan. A process that was given one
    GPU (`Resources(gpus=1)`) sees only that one, and uses it; if there are fewer GPUs than workers, several workers
    share one.

    Args:
        kind: from `kind_of_device`.
        number: the number of the worker's device in the plan.

    Raises:
        PlanInvalid: the process sees no GPU, or not the named one.
    """
    device = torch.device(kind)
    if device.type == "cpu":
        return device
    index = _index(device)
    num = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num <= (index or 0):
        build: Any = torch.version
        raise PlanInvalid(
            f"stages are to compute on {kind!r}, and this process sees {num} GPUs (torch {torch.__version__}, CUDA "
            f"{build.cuda or 'not built in'}); ask for GPUs with resources=Resources(gpus=1), look at "
            f'CUDA_VISIBLE_DEVICES, or compute with device="cpu"'
        )
    found = torch.device("cuda", number % num if index is None else index)
    torch.cuda.set_device(found)
    # Without this, torch's backward thread would warn that it had to create a context.
    torch.zeros(1, device=found, requires_grad=True).sum().backward()  # pyright: ignore[reportUnknownMemberType]
    return found


def on_cpu(tree: Any) -> Any:
    """Return the tree with its GPU tensors moved to CPU memory."""
    return map_tensors(lambda tensor: tensor.cpu() if tensor.is_cuda else tensor, tree)


def is_here(kind: str) -> bool:
    """Whether this process sees a GPU of this kind."""
    device = torch.device(kind)
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.device_count() > (_index(device) or 0)


def share_of_memory(kind: str, num: int) -> int | None:
    """Return the bytes for each of `num` workers on the GPUs that this process sees; None: it sees or uses none."""
    if not is_here(kind):
        return None
    index = _index(torch.device(kind))
    used = range(torch.cuda.device_count()) if index is None else [index]
    cuda: Any = torch.cuda
    least = min(cuda.get_device_properties(one).total_memory for one in used)
    return least // -(-num // len(used))


def _index(device: torch.device) -> int | None:
    return cast("int | None", device.index)  # torch's types omit the None
