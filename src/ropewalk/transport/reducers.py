"""How objects that pickle handles badly are taken apart, chosen by the name of their type.

Nothing here imports torch: a process that holds a tensor has imported it already, and one that receives a tensor
imports it then.

A tensor's memory travels as one out-of-band buffer per storage. Tensors that
share a storage within one payload share it afterwards (tied weights), with
their strides. A tensor that shows only a part of its storage travels alone,
contiguous, so that one row of a large matrix does not bring the matrix along.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

from ropewalk.errors import NotPicklable
from ropewalk.transport.by_value import reduce_code

TENSORS = frozenset({("torch", "Tensor"), ("torch.nn.parameter", "Parameter")})
"""(module, name) of the types that `reduce_tensor` is for; subclasses keep torch's own reduction."""
TENSOR_MODULES = frozenset(module for module, _ in TENSORS)


def reduce_tensor(tensor: Any, storages: dict[tuple[int, int], TensorMemory]) -> Any:
    """The reduction of a `torch.Tensor` or `Parameter`, or NotImplemented where torch's own must serve.

    Args:
        tensor: an object whose type is one of `TENSORS`.
        storages: the storages found in this payload so far; new ones are added.

    Raises:
        NotPicklable: the tensor is not in the memory of the CPU.
    """
    torch: Any = sys.modules["torch"]
    device = tensor.device.type
    if device not in ("cpu", "meta"):
        raise NotPicklable(f"a tensor on device {str(tensor.device)!r}; call .cpu() on it before sending it")
    ordinary = (
        device == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not tensor.__dict__
        and not tensor._backward_hooks
    )
    if not ordinary:
        return NotImplemented
    flat = tensor.detach()
    storage = flat.untyped_storage()
    key = (storage.data_ptr(), storage.nbytes())
    size_bytes = flat.numel() * flat.element_size()
    memory = storages.get(key)
    offset, stride = flat.storage_offset(), tuple(flat.stride())
    if memory is None and size_bytes < storage.nbytes():
        flat = flat.contiguous()
        memory = TensorMemory(flat.data_ptr(), size_bytes, flat)
        offset, stride = 0, tuple(flat.stride())
    elif memory is None:
        memory = storages[key] = TensorMemory(*key, storage)
    is_parameter = type(tensor).__name__ == "Parameter"
    arguments = (memory, tensor.dtype, offset, tuple(tensor.shape), stride, tensor.requires_grad, is_parameter)
    return rebuild_tensor, arguments


class TensorMemory:
    """Memory that a tensor owns; one object per storage, so that pickle's memo shares it."""

    def __init__(self, address: int, size_bytes: int, owner: Any) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.owner = owner

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.size_bytes:
            return rebuild_memory, (b"",)
        return rebuild_memory, (pickle.PickleBuffer(_memory(self.address, self.size_bytes, self.owner)),)


def rebuild_memory(buffer: Any) -> Any:
    """Return a storage of torch over `buffer`, without a copy, also where the buffer is read-only.

    Torch has no read-only tensors: the owner of a read-only buffer must map its memory private and writable, so that a
    write copies a page and does not crash.
    """
    torch: Any = importlib.import_module("torch")  # not a dependency of ours, but of the process that sent the tensor
    view = memoryview(buffer)
    if not view.nbytes:
        return torch.UntypedStorage(0)
    if view.readonly:
        view = _memory(_address(view), view.nbytes, view)
    return torch.frombuffer(view, dtype=torch.uint8).untyped_storage()


def rebuild_tensor(
    storage: Any, dtype: Any, offset: int, size: Any, stride: Any, requires_grad: bool, is_parameter: bool
) -> Any:
    """Rebuild a tensor over `storage`, from the parts that `reduce_tensor` made."""
    torch: Any = importlib.import_module("torch")
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def _memory(address: int, size_bytes: int, owner: Any) -> Any:
    """Return a writable buffer over memory that `owner` keeps alive."""
    import ctypes  # torch has imported it; alone it would cost our import 3 ms

    array = (ctypes.c_ubyte * size_bytes).from_address(address)
    array.owner = owner  # pyright: ignore[reportAttributeAccessIssue]
    return array


def _address(view: memoryview) -> int:
    import ctypes

    # A read-only buffer gives its address only through the C interface. Py_buffer begins with it; 96 bytes is more than
    # its 80 on any 64-bit platform. The view itself keeps the memory in place after the release.
    raw = (ctypes.c_void_p * 12)()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(raw), 0)
    address = raw[0]
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
    assert address is not None
    return address


# The rest is for values of `__main__`, all of which travel by value. cloudpickle has no reducers for these types.


def _reduce_cached_property(prop: functools.cached_property[Any]) -> Any:
    state = {key: value for key, value in prop.__dict__.items() if key != "lock"}  # a lock until Python 3.11
    return functools.cached_property, (prop.func,), state


def _reduce_weak_dict(mapping: Any) -> Any:
    return type(mapping), (dict(mapping),)


def rebuild_lru_cache(parameters: dict[str, Any], function: Callable[..., Any]) -> Any:
    """Rebuild an `lru_cache` around `function`, with an empty cache."""
    return functools.lru_cache(**parameters)(function)


def _reduce_lru_cache(cached: Any) -> Any:
    return rebuild_lru_cache, (cached.cache_parameters(), cached.__wrapped__), dict(cached.__dict__)


def _reduce_new_type(new_type: Any) -> Any:
    return typing.NewType, (new_type.__name__, new_type.__supertype__), dict(new_type.__dict__)


def _reduce_param_spec(spec: Any) -> Any:
    return type(spec), (spec.__name__,)


def _reduce_method(method: types.MethodType) -> Any:
    """Reduce a method as pickle does, by name, where the name leads to it; else by its function."""
    owner, name = method.__self__, method.__func__.__name__
    if isinstance(owner, type) and getattr(owner, name, None) == method:
        return getattr, (owner, name)  # cloudpickle would send the function by value
    return types.MethodType, (method.__func__, owner)


BY_TYPE: dict[type, Callable[[Any], Any]] = {
    types.CodeType: reduce_code,
    functools.cached_property: _reduce_cached_property,
    types.MethodType: _reduce_method,
    weakref.WeakKeyDictionary: _reduce_weak_dict,
    weakref.WeakValueDictionary: _reduce_weak_dict,
}
"""Reducers for `copyreg`-like tables, by exact type."""

LRU_CACHE: type = type(functools.lru_cache(lambda: None))
NAMED: dict[type, Callable[[Any], Any] | None] = {
    LRU_CACHE: _reduce_lru_cache,
    typing.NewType: _reduce_new_type,
    typing.ParamSpec: _reduce_param_spec,
    typing.TypeVarTuple: _reduce_param_spec,
    typing.TypeVar: None,  # cloudpickle's own reducer, which keeps the identity
}
"""Types whose instances pickle as a name of the module that made them, and how to send them by value."""
