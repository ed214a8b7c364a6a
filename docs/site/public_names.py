"""The public names of Ropewalk, where each is defined and what its docstring is, read from the sources alone.

    for name in public_names(Path("src"), "ropewalk.population"):
        print(name.name, name.home, name.docstring)

Nothing is imported, so that the site can be built where torch and the other extras are not installed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PublicName:
    """A name that a public module offers.

    Args:
        module: the public module, such as "ropewalk.population".
        name: the name in that module, such as "OpenAIES".
        home: where it is defined, such as "ropewalk.population.algorithms.openai_es.OpenAIES".
        docstring: that of the definition; None if it has none.
        is_ours: whether it is defined in this project, and not in the standard library.
    """

    module: str
    name: str
    home: str
    docstring: str | None
    is_ours: bool

    @property
    def path(self) -> str:
        """The name with its public module."""
        return f"{self.module}.{self.name}"


def public_names(sources: Path, module: str) -> list[PublicName]:
    """Return the public names of a module, in alphabetical order.

    Args:
        sources: the folder that has the package.
        module: the name of a public module with its package.
    """
    tree = _tree(sources, module)
    names = _listed(tree) or _imported_lazily(tree) or _defined(tree)
    return [_found(sources, module, name) for name in sorted(set(names))]


def _listed(tree: ast.Module) -> list[str]:
    """The names of `__all__`, if it is written as a list of texts."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return [
                each.value
                for each in ast.walk(node.value)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
    return []


def _imported_lazily(tree: ast.Module) -> list[str]:
    """The names that `with _lazy:` imports (see `ropewalk.lazy_names`)."""
    blocks = [node for node in tree.body if isinstance(node, ast.With)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return [alias.asname or alias.name for node in imports for alias in node.names]


def _defined(tree: ast.Module) -> list[str]:
    """The names without an underscore that a module itself defines."""
    return [name for name, *_ in _definitions(tree) if not name.startswith("_")]


def _definitions(tree: ast.Module) -> Iterator[tuple[str, str | None, ast.expr | None]]:
    """The names that a module defines, each with its docstring, and with its value if it is assigned one."""
    for node, following in _statements(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, ast.get_docstring(node), None
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            literal = following.value if isinstance(following, ast.Expr) else None
            words = literal.value if isinstance(literal, ast.Constant) and isinstance(literal.value, str) else None
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)):
                yield name, words, node.value


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Each statement of a module with the one that follows it; those in an `if` as well."""
    for node, following in zip_longest(body, body[1:]):
        yield node, following
        if isinstance(node, ast.If):
            yield from _statements(node.body)
            yield from _statements(node.orelse)


def _found(sources: Path, module: str, name: str) -> PublicName:
    home, called = module, name
    while True:
        path = f"{home}.{called}".rstrip(".")
        if _file(sources, path) is not None:  # a module
            return PublicName(module, name, path, ast.get_docstring(_tree(sources, path)), True)
        if _file(sources, home) is None:
            return PublicName(module, name, path, None, False)
        tree = _tree(sources, home)
        definitions = [each for each in _definitions(tree) if each[0] == called]
        if not definitions:
            home, called = _import_of(tree, home, called)
            continue
        # Others are overloads, or meant for type checkers alone.
        _, words, value = next((each for each in definitions if each[1]), definitions[-1])
        if words is None and isinstance(value, ast.Name):  # another name for the same
            called = value.id
        elif words is None and isinstance(value, ast.Attribute) and (of := _dotted(tree, home, value.value)):
            home, called = of, value.attr
        else:
            return PublicName(module, name, path, words, True)


def _dotted(tree: ast.Module, home: str, expression: ast.expr) -> str | None:
    """The path of the module that an expression such as `multiprocessing.managers` means, if it means one."""
    if isinstance(expression, ast.Attribute):
        of = _dotted(tree, home, expression.value)
        return of and f"{of}.{expression.attr}"
    if not isinstance(expression, ast.Name):
        return None
    for name, _, value in _definitions(tree):
        if name == expression.id:
            return _dotted(tree, home, value) if value is not None else None
    return ".".join(filter(None, _import_of(tree, home, expression.id)))


def _import_of(tree: ast.Module, module: str, name: str) -> tuple[str, str]:
    """The module and the name that a name of a module is imported from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    return (alias.name if alias.asname else name), ""
    raise LookupError(f"{module} neither defines nor imports {name}")


def _file(sources: Path, module: str) -> Path | None:
    path = sources.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if module and file.is_file():
            return file
    return None


@functools.cache
def _tree(sources: Path, module: str) -> ast.Module:
    file = _file(sources, module)
    if file is None:
        raise LookupError(f"{sources} has no module {module}")
    return ast.parse(file.read_text(encoding="utf-8"))
