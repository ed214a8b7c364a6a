"""Plain-text tables for logs and `print`; output that only goes to a terminal uses a table of rich."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence


def text_table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    r"""Yield the lines of a table whose columns are as wide as their longest cell.

    Args:
        rows: rows of cells, all of the same length. Headings, if there are any, are the first row.
        right: indices of the columns that are aligned to the right, such as numbers.

    Example:
        >>> print(*text_table([("node", "calls"), ("replay", "7")], right={1}), sep="\n")
        node    calls
        replay      7
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
