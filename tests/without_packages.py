"""A pytest plugin that hides the packages of engines: `make test` on a fresh machine has none of them."""

from __future__ import annotations

import sys

for name in ("docker", "kubernetes", "kubernetes_validate", "yaml", "ray", "mpi4py"):
    sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to say that there is none
