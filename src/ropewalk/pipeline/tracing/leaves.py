"""Leaf modules, each call of which is one operator: those of `torch.nn` that compute, and those the user names."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.named_tensors import modules_of

_ARRANGERS: tuple[type[nn.Module], ...] = (
    nn.Module,
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
    nn.ParameterDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
"""Modules of torch.nn that only contain others; functions do the rest of their work."""

LeafModule = type[nn.Module] | str | nn.Module
"""A leaf module as the user may name it: a type, its path in the model, or the module itself."""


class Leaves:
    """The leaf modules of one model, each call of which is one operator.

    Raises:
        NotTraceable: a named module is not in the model.
    """

    def __init__(self, model: nn.Module, named: Sequence[LeafModule] = ()) -> None:
        self._modules = modules_of(model, all_names=True)
        self._types = tuple(one for one in named if isinstance(one, type))
        self._paths = {one for one in named if isinstance(one, str)}
        self._paths |= {path for path, module in self._modules.items() if any(module is one for one in named)}
        known = [type(module) for module in self._modules.values()]
        for one in named:
            there = one in self._modules if isinstance(one, str) else True
            if isinstance(one, type):
                there = any(issubclass(kind, one) for kind in known)
            if isinstance(one, nn.Module):
                there = any(module is one for module in self._modules.values())
            if not there:
                shown = one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__)
                paths = ", ".join(path for path in list(self._modules)[:8] if path)
                raise NotTraceable(
                    f"leaf_modules names {shown!r}, and {type(model).__name__} has no such module; it has {paths}, ..."
                )

    def is_named(self, path: str) -> bool:
        """Return whether the user named this module as a leaf."""
        module = self._modules.get(path)
        return path in self._paths or (bool(self._types) and isinstance(module, self._types))

    def name_of(self, path: str) -> str | None:
        """Return the name of the type of the module at this path if it is a leaf, else None."""
        module = self._modules.get(path)
        if module is None:
            return None
        kind = type(module)
        if self.is_named(path) or (isinstance(module, _TORCH_LEAVES) or _is_torchs(kind)):
            return kind.__name__
        return None


_TORCH_LEAVES = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention, nn.RNNBase)
"""These are leaves even if a user's class derives from them, or torch makes a class of them (parametrizations)."""


def _is_torchs(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("torch.nn.modules") and kind not in _ARRANGERS
