"""What a plain install of ropewalk takes on disk: itself and each package that it needs, without extras.

    python benchmarks/installed_size.py

It adds up the files of what is installed in this environment, and asks no package index. Python's byte code is counted
for every module, compiled or not: pip compiles all of them.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from py_compile import compile as compile_file

from rich.console import Console
from rich.table import Table

import ropewalk

#: What files take on the usual file system: whole blocks.
_BLOCK_BYTES = 4096


def needed(name: str) -> list[str]:
    """The names of packages that a package needs without extras, itself first."""
    found = [name]
    for one in found:
        for requirement in distribution(one).requires or ():
            wanted, _, condition = requirement.partition(";")
            match = re.match(r"[A-Za-z0-9._-]+", wanted)
            assert match
            other = re.sub(r"[-_.]+", "-", match[0]).lower()
            if "extra" not in condition and not _is_for_others(condition) and other not in found:
                found.append(other)
    return found


def _is_for_others(condition: str) -> bool:
    """Whether a condition is one for another system or Python than the usual one: this is no full reader of markers."""
    condition = condition.replace("'", '"')
    return any(word in condition for word in ("Windows", "win32", 'python_version < "', 'python_full_version < "'))


def files_of(package: Distribution) -> Iterator[Path]:
    if package.metadata["Name"] == "ropewalk":  # an editable install lists none of its own
        yield from (path for path in Path(ropewalk.__file__).parent.rglob("*") if path.suffix != ".pyc")
        return
    for file in package.files or ():
        if file.suffix != ".pyc":
            yield Path(str(package.locate_file(file)))


def sizes(package: Distribution, scratch: Path) -> tuple[int, int]:
    """The bytes of a package's files, and of their byte code, both in whole blocks."""
    own = code = 0
    for path in files_of(package):
        if not path.is_file():
            continue
        own += _in_blocks(path.stat().st_size)
        if path.suffix == ".py":
            cached = Path(importlib.util.cache_from_source(str(path)))
            if not cached.exists():
                cached = scratch / "compiled.pyc"
                compile_file(str(path), cfile=str(cached), doraise=False)
            code += _in_blocks(cached.stat().st_size) if cached.exists() else 0
    return own, code


def _in_blocks(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def main() -> None:
    table = Table("package", "version")
    for heading in ("files MB", "byte code MB", "together MB"):
        table.add_column(heading, justify="right")
    total_own = total_code = 0
    with tempfile.TemporaryDirectory() as scratch:
        found = [(name, *sizes(distribution(name), Path(scratch))) for name in needed("ropewalk")]
    for name, own, code in sorted(found, key=lambda row: -row[1] - row[2]):
        table.add_row(name, distribution(name).version, *_megabytes(own, code))
        total_own, total_code = total_own + own, total_code + code
    table.add_section()
    table.add_row("all", "", *_megabytes(total_own, total_code))
    Console().print(table)


def _megabytes(own: int, code: int) -> tuple[str, str, str]:
    return f"{own / 2**20:.1f}", f"{code / 2**20:.1f}", f"{(own + code) / 2**20:.1f}"


if __name__ == "__main__":
    main()
