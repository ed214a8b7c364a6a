"""Where the profiles of real models lie; a checkout without them skips what needs them, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def profiles() -> Path:
    """The folder with PipeDream's profiles and objectives."""
    folder = Path(__file__).parents[2] / "shared" / "profiles"
    if not folder.is_dir():
        pytest.skip(f"the profiles of real models are not beside this checkout ({folder.name} in {folder.parent.name})")
    return folder
