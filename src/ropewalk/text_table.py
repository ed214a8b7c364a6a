"""Plain-text tables for logs and `print`; output that only goes to a terminal uses a table of rich."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

_ALWAYS_COUNTS, _NEVER_COUNTS = 40, 100
"""Characters up to which a cell counts in the width of its column in any case, and above which it never does."""


def text_table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    r"""Yield the lines of a table whose columns are as wide as their longest cell.

    A cell that is more than 40 characters long, and twice as long as the median of its column, does not count, nor does
    one of more than 100: a long name moves the rest of its own row, and not of all others. Nothing is cut.

    Args:
        rows: rows of cells, all of the same length. Headings, if there are any, are the first row.
        right: indices of the columns that are aligned to the right, such as numbers.

    Example:
        >>> print(*text_table([("node", "calls"), ("replay", "7")], right={1}), sep="\n")
        node    calls
        replay      7
    """
    widths = [_width(column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _width(column: Sequence[str]) -> int:
    lengths = sorted(map(len, column))
    most = min(max(_ALWAYS_COUNTS, 2 * lengths[len(lengths) // 2]), _NEVER_COUNTS)
    return max((length for length in lengths if length <= most), default=0)
