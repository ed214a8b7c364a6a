"""Use of NVIDIA GPUs, as their driver counts it: NVML, called directly, so that no package is needed.

Source: NVML API Reference, docs.nvidia.com/deploy/nvml-api: nvmlDeviceGetUtilizationRates, nvmlDeviceGetMemoryInfo,
nvmlDeviceGetPowerUsage, nvmlDeviceGetTemperature. All return 0 for success.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_LIBRARY = "libnvidia-ml.so.1"
_TEMPERATURE_OF_GPU = 0


class _GpuUtilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _GpuMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class GpuMetrics:
    """The GPUs of this host; there are none where NVIDIA's driver is not installed.

    Args:
        library: name of the library of NVML.
    """

    def __init__(self, library: str = _LIBRARY) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError:
            return
        if self._nvml.nvmlInit_v2() != 0:
            return
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._handles.append(handle)

    def read(self) -> dict[str, float]:
        """Return utilisation in percent, memory in bytes, power in watts and temperature in degrees Celsius, by name.

        The name of a metric begins with that of its GPU, "gpu0/". What a GPU does not tell is left out.
        """
        found: dict[str, float] = {}
        for index, handle in enumerate(self._handles):
            for name, read in _READINGS.items():
                value = read(self._nvml, handle)
                if value is not None:
                    found[f"gpu{index}/{name}"] = value
        return found


def _utilisation(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> float | None:
    rates = _GpuUtilisation()
    return rates.gpu if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0 else None


def _memory(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> float | None:
    memory = _GpuMemory()
    return memory.used if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 else None


def _power(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> float | None:
    milliwatts = ctypes.c_uint()
    return milliwatts.value / 1e3 if nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == 0 else None


def _temperature(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> float | None:
    degrees = ctypes.c_uint()
    code = nvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE_OF_GPU, ctypes.byref(degrees))
    return degrees.value if code == 0 else None


_READINGS: dict[str, Callable[[ctypes.CDLL, ctypes.c_void_p], float | None]] = {
    "utilisation_percent": _utilisation,
    "memory_bytes": _memory,
    "power_w": _power,
    "temperature_c": _temperature,
}

__all__ = ["GpuMetrics"]
