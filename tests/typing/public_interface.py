"""Every public name has a type: `python -m tests.typing.public_interface` lets `pyright --verifytypes` look for others.

Pyright counts every module without an underscore as public. Most of ours are private and have none (see
docs/stability.md). So it looks at a copy in which each private module has one, in its file name and in each import of
it: there it finds what is public and the types that this refers to, and nothing else.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ropewalk

#: Modules whose names are public: those of their `__all__`, or all that do not begin with an underscore.
PUBLIC_MODULES = frozenset(
    {
        "ropewalk",
        "ropewalk.errors",
        "ropewalk.exchange",
        "ropewalk.exchange.federated",
        "ropewalk.exchange.presets",
        "ropewalk.pipeline",
        "ropewalk.population",
        "ropewalk.rl",
        "ropewalk.search",
        "ropewalk.tracking",
        "ropewalk.training",
        # For those that write engines, algorithms, compressors, partitioners, samplers, schedules, schedulers.
        "ropewalk.testing",
        "ropewalk.testing.algorithm_conformance",
        "ropewalk.testing.compressor_conformance",
        "ropewalk.testing.engine_conformance",
        "ropewalk.testing.faults",
        "ropewalk.testing.partitioner_conformance",
        "ropewalk.testing.pytest_plugin",
        "ropewalk.testing.sampler_conformance",
        "ropewalk.testing.schedule_conformance",
        "ropewalk.testing.scheduler_conformance",
        # As in multiprocessing.
        "ropewalk.connection",
        "ropewalk.context",
        "ropewalk.dummy",
        "ropewalk.managers",
        "ropewalk.pool",
        "ropewalk.process",
        "ropewalk.queues",
        "ropewalk.shared_memory",
        "ropewalk.sharedctypes",
        "ropewalk.synchronize",
    }
)


def install_with_underscores(package: Path, environment: Path) -> Path:
    """Make a virtual environment that has the copy, and beside it what this Python has installed.

    Args:
        package: the folder of the package `ropewalk`.
        environment: a folder for the virtual environment.

    Returns:
        The folder of its programs, among them `python`.
    """
    venv.create(environment, symlinks=True)
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # What is installed in these folders, without what their .pth files add: an editable install of ropewalk.
    (site / "installed.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    modules = {_name_of(path, package): path for path in package.rglob("*.py") if path.name != "__main__.py"}
    for name, path in modules.items():
        parts = _with_underscore(name, modules).split(".")
        copy = site.joinpath(*parts, "__init__.py") if path.name == "__init__.py" else site.joinpath(*parts)
        copy = copy.with_suffix(".py")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_with_other_imports(path.read_text(encoding="utf-8"), modules), encoding="utf-8")
    shutil.copy(package / "py.typed", site / "ropewalk")
    return environment / "bin"


def _name_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _with_underscore(name: str, modules: dict[str, Path]) -> str:
    """The name of a module in the copy; of a name in a module, such as `ropewalk.pool.Pool`, the same."""
    parts = name.split(".")
    for end in range(2, len(parts) + 1):
        module = ".".join(parts[:end])
        if module in modules and module not in PUBLIC_MODULES:
            return ".".join((*parts[: end - 1], f"_{parts[end - 1]}", *parts[end:]))
    return name


def _with_other_imports(source: str, modules: dict[str, Path]) -> str:
    lines = source.splitlines(keepends=True)
    for node in sorted(_imports(ast.parse(source)), key=lambda node: -node.lineno):
        assert node.end_lineno is not None
        new = "; ".join(ast.unparse(statement) for statement in _renamed(node, modules))
        num_lines = node.end_lineno - node.lineno + 1  # so that pyright names the lines of the original
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + new + "\n", *["\n"] * (num_lines - 1)]
    return "".join(lines)


def _imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}."]
        else:
            continue
        if any(name.startswith("ropewalk.") for name in names):
            yield node


def _renamed(node: ast.Import | ast.ImportFrom, modules: dict[str, Path]) -> Iterator[ast.stmt]:
    if isinstance(node, ast.Import):
        yield ast.Import([ast.alias(_with_underscore(alias.name, modules), alias.asname) for alias in node.names])
        return
    assert node.module is not None
    for alias in node.names:
        module, _, name = _with_underscore(f"{node.module}.{alias.name}", modules).rpartition(".")
        # A name that is public by an import of itself stays so.
        asname = alias.name if name != alias.name else alias.asname
        yield ast.ImportFrom(module, [ast.alias(name, asname)], 0)


def verify(folder: Path) -> int:
    """Print what has no type of its own, and how many public names there are; the exit code.

    Args:
        folder: an empty one, for the copy.
    """
    programs = install_with_underscores(Path(ropewalk.__file__).parent, folder / "environment")
    command = [sys.executable, "-P", "-m", "pyright", "--verifytypes", "ropewalk", "--ignoreexternal", "--outputjson"]
    # With --verifytypes Pyright takes the first `python` of PATH, not the one of --pythonpath, and an editable install
    # is no package to it: either way it says that there is no py.typed.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PATH"] = f"{programs}{os.pathsep}{variables.get('PATH', '')}"
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    said: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    untyped = [symbol for symbol in said["symbols"] if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]]
    for symbol in untyped:
        for diagnostic in symbol["diagnostics"]:
            print(f"{symbol['name']}: {diagnostic['message']}")
    missing = PUBLIC_MODULES - {module["name"] for module in said["modules"]}
    if missing:
        print(f"Pyright found no module {', '.join(sorted(missing))}: change PUBLIC_MODULES and docs/stability.md")
    num_public = sum(symbol["isExported"] for symbol in said["symbols"])
    print(f"{num_public} public names in {len(said['modules'])} modules, {len(untyped)} names without a type")
    return 1 if untyped or missing else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(verify(Path(made)))
