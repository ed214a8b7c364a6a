"""All mutants of a module: those of cosmic-ray's operators, and each simple statement left out.

cosmic-ray changes operators, comparisons, conditions, numbers, loops, exceptions and decorators. What it has not is the
mistake that state machines are most prone to: a line that was forgotten.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import pickle
from collections.abc import Iterator
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor

#: Of cosmic-ray's operators. It puts each of twelve operators in the place of each other one; here the mistakes are
#: those that people make: the opposite, and the bound that belongs to it or not.
_OPERATORS = (
    *("AddNot", "ReplaceUnaryOperator_Delete_Not", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer", "ReplaceUnaryOperator_USub_UAdd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "ExceptionReplacer"),
    *("RemoveDecorator",),
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, b in (("Lt", "LtE"), ("Lt", "GtE"), ("LtE", "Lt"), ("LtE", "Gt"))),
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, b in (("Gt", "GtE"), ("Gt", "LtE"), ("GtE", "Gt"), ("GtE", "Lt"))),
    *(
        f"ReplaceComparisonOperator_{a}_{b}"
        for a, b in (("Eq", "NotEq"), ("NotEq", "Eq"), ("Is", "IsNot"), ("IsNot", "Is"))
    ),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in (("Add", "Sub"), ("Sub", "Add"), ("Mul", "Div"), ("Div", "Mul"))),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in (("FloorDiv", "Mul"), ("Mod", "Add"), ("Pow", "Mul"))),
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in (("BitOr", "BitAnd"), ("BitAnd", "BitOr"))),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one mistake."""

    source: str
    line: int
    """Where it is, from 1 on."""
    was: str
    """The line, or lines, without the mistake."""
    becomes: str


def mutants_of(source: str) -> list[Mutant]:
    """Every mutant of a module that means another thing than it, once."""
    seen = {_meaning(source)}
    found: list[Mutant] = []
    for mutated in (*_by_cosmic_ray(source), *_with_a_statement_left_out(source)):
        try:
            meaning = _meaning(mutated)
        except SyntaxError:  # such as a default in a pattern
            continue
        if meaning not in seen:
            seen.add(meaning)
            found.append(_mutant(source, mutated))
    return sorted(found, key=lambda mutant: mutant.line)


def _by_cosmic_ray(source: str) -> Iterator[str]:
    tree = get_ast(source)
    copy = pickle.dumps(tree)  # a mutation is made in the tree itself; this is ten times as fast as parsing
    for name in _OPERATORS:
        operator: Any = cosmic_ray.plugins.get_operator(f"core/{name}")()
        if name == "ExceptionReplacer":
            operator.mutate = functools.partial(_replace_exception, operator)
        num_places = sum(1 for node in ast_nodes(tree) for _ in operator.mutation_positions(node))
        for occurrence in range(num_places):
            visitor: Any = MutationVisitor(occurrence, operator)
            mutated = visitor.walk(pickle.loads(copy)).get_code()
            if visitor.mutation_applied:
                yield mutated


def _replace_exception(operator: Any, node: Any, index: int) -> Any:
    """As `mutate` of the operator, which fails where one of several exceptions has a dot, such as `struct.error`."""
    operator._name_nodes(node)[index].get_first_leaf().value = "CosmicRayTestingException"
    return node


def _with_a_statement_left_out(source: str) -> Iterator[str]:
    lines = source.splitlines(keepends=True)
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.stmt) and not hasattr(node, "body") and not isinstance(node, ast.Match):
                    before, after = lines[: node.lineno - 1], lines[node.end_lineno :]
                    yield "".join([*before, " " * node.col_offset + "pass\n", *after])


class _Meaning(ast.NodeTransformer):
    """Takes out what is said to people and type checkers only, and how records are stored."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None and isinstance(node.target, ast.Attribute):
            return ast.Pass()
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]  # `*` may become `/`
        node.posonlyargs, node.kwonlyargs = [], []
        node.defaults, node.kw_defaults = [*node.defaults, *filter(None, node.kw_defaults)], []
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list, node.keywords = [], []  # how a record is stored: frozen, with slots, as an array
        self.generic_visit(node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        is_for_types = any(isinstance(each, ast.Name) and each.id == "TYPE_CHECKING" for each in ast.walk(node.test))
        self.generic_visit(node)
        return ast.Pass() if is_for_types else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        node.cause = None
        self.generic_visit(node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def _meaning(source: str) -> str:
    return ast.dump(_Meaning().visit(ast.parse(source)))


def _mutant(source: str, mutated: str) -> Mutant:
    old, new = source.splitlines(), mutated.splitlines()
    changes = [
        change for change in difflib.SequenceMatcher(None, old, new, False).get_opcodes() if change[0] != "equal"
    ]
    first, last = changes[0], changes[-1]
    was, becomes = old[first[1] : last[2]], new[first[3] : last[4]]
    return Mutant(mutated, first[1] + 1, _one_line(was), _one_line(becomes))


def _one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())
