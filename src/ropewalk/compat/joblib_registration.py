"""Telling joblib of us, when somebody asks for it: joblib is not needed for anything else."""

from __future__ import annotations

import importlib


def register_joblib_backend() -> None:
    """Let joblib know the backend "ropewalk", for `joblib.parallel_config(backend="ropewalk")`.

    Raises:
        ImportError: joblib is not installed.
    """
    importlib.import_module("ropewalk.compat.joblib_backend").register()
