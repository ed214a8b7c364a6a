"""Registration of the joblib backend on request: nothing else in Ropewalk needs joblib."""

from __future__ import annotations

import importlib


def register_joblib_backend() -> None:
    """Register the backend "ropewalk" with joblib, for `joblib.parallel_config(backend="ropewalk")`.

    Raises:
        ImportError: joblib is not installed.
    """
    importlib.import_module("ropewalk.compat.joblib_backend").register()
