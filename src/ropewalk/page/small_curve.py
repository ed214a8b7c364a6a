"""A small curve as SVG, made of numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence


def small_curve(values: Sequence[float], color: str, width: int = 120, height: int = 26) -> str:
    """Draw values as a curve with a filled area below; "" if there are fewer than two.

    Args:
        values: in their order; those that are not finite are left out.
        color: of the curve; from `Style`.
        width: in pixels.
        height: in pixels.
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    top = max(finite)
    scale = (height - 4) / top if top > 0 else 0.0
    step = width / (len(finite) - 1)
    points = " ".join(f"{step * i:.0f},{height - 2 - scale * max(0.0, value):.1f}" for i, value in enumerate(finite))
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<polygon points="0,{height} {points} {width},{height}" fill="{color}" fill-opacity="0.15"/>'
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/></svg>'
    )


__all__ = ["small_curve"]
