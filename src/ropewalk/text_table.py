"""Tables of reports that are plain text, for logs and `print`; what goes to a terminal alone is a table of rich."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence


def text_table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    r"""Lines of a table whose columns are as wide as their longest cell.

    Args:
        rows: cells; all rows have as many of them. Headings are the first row, if there are any.
        right: the columns that stand to the right, such as numbers.

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
