"""The schemes that GD-SEC is compared with, as options of GD-SEC: threshold, memory, error correction, values.

    scheme                test                    memory   errors   values      from
    gradient_descent      -                       -        -        exact
    no_error_correction   by component            beta     lost     exact       the ablation of the GD-SEC paper
    componentwise_lag     by component            all      lost     exact       between LAG and GD-SEC
    cgd                   norm of the bucket      all      lost     exact       arXiv 1909.03631, 1805.09965 (LAG)
    top_j                 largest share           -        kept     exact       arXiv 1809.07599
    qgd                   -                       -        lost     quantized   arXiv 1610.02132 (QSGD)

One code path for all of them, so that what differs between two rows of a table is what their names say.
"""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.exchange.compressors.gd_sec import GDSEC


def gradient_descent() -> GDSEC:
    """Every component of every gradient, in every round."""
    return GDSEC(density=1.0, beta=0.0, error_correction=False)


def no_error_correction(c: float = 100.0, beta: float = 0.01) -> GDSEC:
    """GD-SEC that forgets what it does not send."""
    return GDSEC(c=c, beta=beta, error_correction=False)


def componentwise_lag(c: float = 1.0) -> GDSEC:
    """A component is sent when it moved by more than c times what was applied; until then the old one counts.

    Strong where gradients are exact; with minibatches it sends nearly everything.
    """
    return GDSEC(c=c, beta=1.0, error_correction=False)


def cgd(c: float = 1.0) -> GDSEC:
    """Censored gradient descent: the whole vector when it moved by more than c times what was applied, or nothing."""
    return GDSEC(c=c, beta=1.0, per="bucket", error_correction=False)


def top_j(density: float = 0.01) -> GDSEC:
    """The largest components of each gradient and what was kept back; the rest is kept."""
    return GDSEC(density=density, beta=0.0)


def qgd(levels: int = 7) -> GDSEC:
    """Every component of every gradient, rounded at random to a few levels."""
    return GDSEC(density=1.0, beta=0.0, error_correction=False, values=f"levels({levels})")


#: By name, GD-SEC itself among them.
PRESETS: dict[str, Callable[..., GDSEC]] = {
    "gradient_descent": gradient_descent,
    "gd_sec": GDSEC,
    "no_error_correction": no_error_correction,
    "componentwise_lag": componentwise_lag,
    "cgd": cgd,
    "top_j": top_j,
    "qgd": qgd,
}
