"""Profiles to plan with: our own, in the shape of well-known models, and PipeDream's if they lie beside this checkout.

What needs a profile runs with ours everywhere, and with PipeDream's as well where they are:

    @pytest.mark.parametrize("model", [*MODEL_PROFILES, *shipped("vgg16")])
    def test_...(model: str) -> None:
        profile = profile_of(model)
"""

from __future__ import annotations

from pathlib import Path

from ropewalk.pipeline.graph_text import read_graph_text, write_graph_text
from ropewalk.pipeline.profiles import Profile
from ropewalk.testing.model_profiles import MODEL_PROFILES, branches

#: PipeDream's profiles, and the objectives that its own optimizer printed for them.
FOLDER = Path(__file__).parents[2] / "shared" / "profiles"

#: As many modules as inception_v3 has: more legal cuts than are searched at once.
WIDE = "branches of 11 modules"


def shipped(*models: str) -> tuple[str, ...]:
    """Those of PipeDream's profiles; none if they are not here."""
    return models if FOLDER.is_dir() else ()


def text_of(model: str) -> str:
    """A profile in PipeDream's text."""
    if model == WIDE:
        return write_graph_text(branches(11))
    return (
        write_graph_text(MODEL_PROFILES[model]()) if model in MODEL_PROFILES else (FOLDER / f"{model}.txt").read_text()
    )


def profile_of(model: str) -> Profile:
    """A profile, read from that text."""
    return read_graph_text(text_of(model))
