"""The schemes that GD-SEC is compared with, as options of GD-SEC: threshold, memory, error correction, values.

    scheme                test                    memory   errors   values      from
    gradient_descent      -                       -        -        exact
    no_error_correction   by component            beta     lost     exact       the ablation of the GD-SEC paper
    componentwise_lag     by component            all      lost     exact       between LAG and GD-SEC
    cgd                   norm of the bucket      all      lost     exact       arXiv 1909.03631, 1805.09965 (LAG)
    top_j                 largest share           -        kept     exact       arXiv 1809.07599
    qgd                   -                       -        lost     quantized   arXiv 1610.02132 (QSGD)

All schemes share one code path, so that two rows of a table differ only by what their names say.
"""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.exchange.compressors.gd_sec import GDSEC


def gradient_descent() -> GDSEC:
    """Send every component of every gradient in every round."""
    return GDSEC(density=1.0, beta=0.0, error_correction=False)


def no_error_correction(c: float = 100.0, beta: float = 0.01) -> GDSEC:
    """Use GD-SEC without error correction: what is not sent is lost.

    Args:
        c: threshold factor, see `GDSECOptions`.
        beta: rate of the memory, see `GDSECOptions`.
    """
    return GDSEC(c=c, beta=beta, error_correction=False)


def componentwise_lag(c: float = 1.0) -> GDSEC:
    """Send a component when it moved by more than `c` times the applied update; otherwise the old value counts.

    This works well for exact gradients; with minibatches it sends nearly everything.

    Args:
        c: threshold factor; larger values send less.
    """
    return GDSEC(c=c, beta=1.0, error_correction=False)


def cgd(c: float = 1.0) -> GDSEC:
    """Use censored gradient descent: send a vector that moved by more than `c` times the update whole, else nothing.

    Args:
        c: threshold factor; larger values send less.
    """
    return GDSEC(c=c, beta=1.0, per="bucket", error_correction=False)


def top_j(density: float = 0.01) -> GDSEC:
    """Send the largest components of gradient plus residual; keep the rest as the residual.

    Args:
        density: fraction of the components that is sent.
    """
    return GDSEC(density=density, beta=0.0)


def qgd(levels: int = 7) -> GDSEC:
    """Send every component of every gradient, rounded stochastically to a few levels.

    Args:
        levels: number of levels above zero.
    """
    return GDSEC(density=1.0, beta=0.0, error_correction=False, values=f"levels({levels})")


PRESETS: dict[str, Callable[..., GDSEC]] = {
    "gradient_descent": gradient_descent,
    "gd_sec": GDSEC,
    "no_error_correction": no_error_correction,
    "componentwise_lag": componentwise_lag,
    "cgd": cgd,
    "top_j": top_j,
    "qgd": qgd,
}
"""The presets by name, GD-SEC itself among them."""
