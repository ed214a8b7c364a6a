"""Evaluates perceptrons with numpy, which starts an operation in a fraction of the time that torch takes.

A forward is made from a module once and reads the module's weights where they are, so it follows weights that are
loaded into the module in place (`load_state_dict`). It does not follow a module that is moved to another device or
dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ropewalk.rl.environments.spec import Array, ArraySpec, Observation
from ropewalk.rl.networks.heads import GaussianHead, PolicyHead, QHead, ValueHead
from ropewalk.rl.networks.mlp import MLPTorso
from ropewalk.rl.networks.noisy import NoisyLinear
from ropewalk.rl.networks.normalisation import NormalisedTorso, RunningMoments
from ropewalk.rl.networks.preprocessing import is_image, vector_size
from ropewalk.rl.networks.torso import WrappedTorso

Forward: TypeAlias = Callable[[Any], Any]
"""Maps observations (N, ...) to what the module returns for them, both as numpy arrays."""


def numpy_forward(module: nn.Module) -> Forward | None:
    """Return a function that computes what a module does, without torch; None if that is not possible.

    It is possible for `torch.nn.Sequential` of linear layers, layer norms and the usual activations, for the torsos of
    `rl.MLP` and `rl.Normalised` and for heads without noise, on the CPU in float32. Results agree to about 1e-6.

    Args:
        module: maps observations, shape (N, ...), to a tensor. Torsos are taken as such a map.
    """
    converter = _CONVERTERS.get(type(module))
    if converter is None or _is_changed(module):
        return None
    return converter(module)


def _is_changed(module: nn.Module) -> bool:
    """Whether something beside its own `forward` decides what a module returns, or its weights are not for numpy."""
    hooks = (vars(module)[name] for name in ("_forward_hooks", "_forward_pre_hooks"))
    return any(hooks) or any(
        parameter.device.type != "cpu" or parameter.dtype != torch.float32 for parameter in module.parameters()
    )


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """The memory of a weight as an array."""
    return tensor.detach().numpy()


def _chain(*forwards: Forward | None) -> Forward | None:
    if any(forward is None for forward in forwards):
        return None
    steps = [forward for forward in cast("tuple[Forward, ...]", forwards) if forward is not _same]

    def run(values: Any) -> Any:
        for step in steps:
            values = step(values)
        return values

    return steps[0] if len(steps) == 1 else run


def _same(values: Any) -> Any:
    return values


def _linear(layer: nn.Linear) -> Forward:
    weight = _array(layer.weight).T
    bias = None if layer.bias is None else _array(layer.bias)  # pyright: ignore[reportUnnecessaryComparison]

    def run(values: Any) -> Any:
        values = values @ weight
        if bias is not None:
            values += bias
        return values

    return run


def _noisy_linear(layer: NoisyLinear) -> Forward | None:
    del layer
    return None  # its noise is drawn by torch


def _layer_norm(layer: nn.LayerNorm) -> Forward | None:
    if len(layer.normalized_shape) != 1 or not layer.elementwise_affine or layer.bias is None:  # pyright: ignore[reportUnnecessaryComparison]
        return None
    weight, bias, eps = _array(layer.weight), _array(layer.bias), layer.eps

    def run(values: Any) -> Any:
        apart = values - values.mean(-1, keepdims=True)
        return apart / np.sqrt(np.square(apart).mean(-1, keepdims=True) + eps) * weight + bias

    return run


def _tanh(values: Any) -> NDArray[np.float32]:
    return np.tanh(values)


def _relu(values: Any) -> Any:
    return np.maximum(values, 0)


def _silu(values: Any) -> Any:
    return values * (0.5 * np.tanh(0.5 * values) + 0.5)  # the logistic function, which does not overflow in this form


def _elu(layer: nn.ELU) -> Forward:
    alpha: float = layer.alpha

    def run(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.where(values > 0, values, alpha * np.expm1(np.minimum(values, 0)))

    return run


def _leaky_relu(layer: nn.LeakyReLU) -> Forward:
    slope: float = layer.negative_slope

    def run(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.where(values > 0, values, slope * values)

    return run


def _flatten(layer: nn.Flatten) -> Forward | None:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        return None
    return lambda values: values.reshape(len(values), -1)


def _sequential(layers: nn.Sequential) -> Forward | None:
    return _chain(*map(numpy_forward, layers))


def _vector(spec: ArraySpec | Mapping[str, ArraySpec]) -> Forward:
    """As `ropewalk.rl.networks.preprocessing.as_vector`."""
    if not isinstance(spec, ArraySpec):
        parts = {name: _vector(entry) for name, entry in spec.items()}
        return lambda values: np.concatenate([part(values[name]) for name, part in parts.items()], axis=-1)
    size = vector_size(spec)
    if not spec.shape and size > 1:
        return lambda values: np.eye(size, dtype=np.float32)[values.astype(np.int64) - int(spec.low)]
    divided = is_image(spec)

    def run(values: Array) -> Any:
        flat = values.reshape(len(values), size).astype(np.float32, copy=False)
        return flat / np.float32(255) if divided else flat

    return run


def _mlp_torso(torso: MLPTorso) -> Forward | None:
    return _chain(_vector(torso.observation), numpy_forward(torso.body))


def _wrapped_torso(torso: WrappedTorso) -> Forward | None:
    return numpy_forward(torso.module)


def _running_moments(moments: RunningMoments) -> Forward:
    mean, inverse, clip = _array(moments.mean), _array(moments.inverse), moments.clip

    def run(values: Any) -> Any:
        return np.minimum(np.maximum((values - mean) * inverse, -clip), clip).astype(np.float32)

    return run


def _normalised_torso(torso: NormalisedTorso) -> Forward | None:
    parts = {name: _running_moments(moments) for name, moments in torso.parts.items()}
    inner = numpy_forward(torso.inner)
    if inner is None:
        return None

    def run(observation: Observation) -> Any:
        if not isinstance(observation, dict):
            return inner(parts[""](observation))
        return inner({**observation, **{name: part(observation[name]) for name, part in parts.items()}})

    return run


def _policy_head(head: PolicyHead) -> Forward | None:
    return numpy_forward(head.linear)


def _gaussian_head(head: GaussianHead) -> Forward | None:
    linear, log_std = numpy_forward(head.linear), _array(head.log_std)
    if linear is None:
        return None

    def run(values: Any) -> Any:
        mean = linear(values)
        params = np.empty((*mean.shape[:-1], 2 * len(log_std)), np.float32)
        params[..., : len(log_std)] = mean
        params[..., len(log_std) :] = log_std
        return params

    return run


def _value_head(head: ValueHead) -> Forward | None:
    return _chain(numpy_forward(head.linear), lambda values: values[..., 0])


def _q_head(head: QHead) -> Forward | None:
    advantage = numpy_forward(head.advantage)
    value = None if head.value is None else numpy_forward(head.value)
    if advantage is None or (head.value is not None and value is None):
        return None
    shape, single = (head.num_actions, head.num_atoms), head.num_atoms == 1

    def run(features: Any) -> Any:
        values = advantage(features).reshape(*features.shape[:-1], *shape)
        if value is not None:
            values = value(features)[..., None, :] + values - values.mean(-2, keepdims=True)
        return values[..., 0] if single else values

    return run


_CONVERTERS: dict[type[nn.Module], Callable[[Any], Forward | None]] = {
    nn.Linear: _linear,
    NoisyLinear: _noisy_linear,
    nn.LayerNorm: _layer_norm,
    nn.Tanh: lambda _: _tanh,
    nn.ReLU: lambda _: _relu,
    nn.SiLU: lambda _: _silu,
    nn.ELU: _elu,
    nn.LeakyReLU: _leaky_relu,
    nn.Identity: lambda _: _same,
    nn.Flatten: _flatten,
    nn.Sequential: _sequential,
    MLPTorso: _mlp_torso,
    WrappedTorso: _wrapped_torso,
    NormalisedTorso: _normalised_torso,
    PolicyHead: _policy_head,
    GaussianHead: _gaussian_head,
    ValueHead: _value_head,
    QHead: _q_head,
}

__all__ = ["Forward", "numpy_forward"]
