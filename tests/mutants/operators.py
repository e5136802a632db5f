"""Every small change of a function that a test should notice: its *mutations*.

The operators are those of the field (DeMillo, Lipton and Sayward, "Hints on Test Data
Selection", 1978; Offutt and others, "An Experimental Determination of Sufficient Mutant
Operators", 1996): comparisons, boundaries, signs, constants, dropped statements and
conditions, swapped arguments, returns. Texts are left alone: no test should hold words.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)

BOUNDARIES: Final[dict[type, type]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
OPPOSITES: Final[dict[type, type]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SIGNS: Final[dict[type, type]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OTHERS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Evaluated once, as the function is defined, or not at all.
NOT_RUN: Final = {"annotation", "returns", "decorator_list", "type_params", "args"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one function of a module.

    Args:
        function: Its name within the module, with its class: that of the outermost, if
            functions stand in it.
        operator: The kind of the change.
        text: What is changed into what, in Python, each on one line.
        line: Where that begins.
        last_line: Where it ends.
        owner: The node, of the module's tree, that has what is changed.
        field: The attribute of *owner* which holds it.
        index: Its place, if that is a list.
        new: What comes there.
    """

    function: str
    operator: str
    text: str
    line: int
    last_line: int
    owner: ast.AST
    field: str
    index: int | None
    new: ast.AST

    def apply(self) -> None:
        """Change the tree, for good."""
        if self.index is None:
            setattr(self.owner, self.field, self.new)
        else:
            getattr(self.owner, self.field)[self.index] = self.new


def mutations_of(tree: ast.Module) -> Iterator[Mutation]:
    """The mutations of a module's functions, in the order of its text."""
    for name, function in functions_of(tree):
        stored = Counter(
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        for owner, field, index, node in _slots(function):
            for operator, new in _changes(node, stored):
                if _is_another(owner, field, operator):
                    continue
                yield Mutation(
                    function=name,
                    operator=operator,
                    text=f"{_line(node)} => {_line(new)}",
                    line=node.lineno,
                    last_line=_last_line(node),
                    owner=owner,
                    field=field,
                    index=index,
                    new=ast.fix_missing_locations(ast.copy_location(new, node)),
                )


def functions_of(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions and methods of a module, but none within another function."""
    nodes: list[tuple[str, ast.AST]] = [("", tree)]
    for prefix, node in nodes:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield f"{prefix}{child.name}", child
            elif isinstance(child, ast.ClassDef):
                nodes.append((f"{prefix}{child.name}.", child))
            elif isinstance(child, ast.If | ast.Try):
                nodes.append((prefix, child))


Located = ast.expr | ast.stmt
Slot = tuple[ast.AST, str, int | None, Located]


def _slots(node: ast.AST) -> Iterator[Slot]:
    """Statements and expressions below a node, each with where it hangs."""
    for field, value in ast.iter_fields(node):
        if field in NOT_RUN:
            if isinstance(value, list) and isinstance(node, ast.Call):
                yield from _each(node, field, value)
        elif isinstance(value, list):
            yield from _each(node, field, value)
        elif isinstance(value, ast.AST):
            if isinstance(value, Located):
                yield node, field, None, value
            yield from _slots(value)


def _each(node: ast.AST, field: str, values: list[object]) -> Iterator[Slot]:
    for index, value in enumerate(values):
        if isinstance(value, Located):
            yield node, field, index, value
        if isinstance(value, ast.AST):
            yield from _slots(value)


def _changes(node: Located, stored: Counter[str]) -> Iterator[tuple[str, Located]]:
    """What a statement or an expression can be changed into, each with its operator."""
    match node:
        case ast.Expr(value=ast.Constant() | ast.Yield()):
            pass
        case ast.Expr() | ast.Raise() | ast.Delete() | ast.AugAssign():
            yield "dropped statement", ast.Pass()
        case ast.Break() | ast.Continue() | ast.Return(value=None):
            yield "dropped statement", ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)]):
            # Without its only value it would be unbound: any test that gets there fails.
            if stored[name] > 1:
                yield "dropped statement", ast.Pass()
        case ast.Assign(targets=[ast.Tuple()]) | ast.AnnAssign(target=ast.Name()):
            pass
        case ast.Assign() | ast.AnnAssign():
            yield "dropped statement", ast.Pass()
        case ast.Return(value=ast.Constant(value=None | True | False)):
            pass
        case ast.Return():
            yield "return", ast.Return(ast.Constant(None))
        case _:
            pass
    match node:
        case ast.If() | ast.IfExp():
            for value in (True, False):
                yield "dropped condition", _with(node, test=ast.Constant(value))
        case ast.While() if not isinstance(node.test, ast.Constant):
            yield "dropped condition", _with(node, test=ast.Constant(value=False))
        case ast.BoolOp(values=values):
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                new = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield "dropped condition", new
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from _without_filters(node)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield "sign", operand
        case ast.Compare(ops=[op]):
            if boundary := BOUNDARIES.get(type(op)):
                yield "boundary", ast.Compare(node.left, [boundary()], node.comparators)
            opposite = OPPOSITES[type(op)]()
            yield "comparison", ast.Compare(node.left, [opposite], node.comparators)
        case ast.Compare(ops=ops):
            for index, op in enumerate(ops):
                if boundary := BOUNDARIES.get(type(op)):
                    changed = [*ops[:index], boundary(), *ops[index + 1 :]]
                    new = ast.Compare(node.left, changed, node.comparators)
                    yield "boundary", new
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SIGNS:
            if not any(_is_text(side) for side in (left, right)):
                yield "sign", ast.BinOp(left, SIGNS[type(op)](), right)
        case ast.AugAssign(op=op) if type(op) in SIGNS and not _is_text(node.value):
            yield "sign", ast.AugAssign(node.target, SIGNS[type(op)](), node.value)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in OTHERS:
            other = ast.copy_location(ast.Name(OTHERS[name], ast.Load()), node)
            yield "comparison", ast.Call(other, node.args, node.keywords)
        case ast.Call(args=[ast.expr() as first, ast.expr() as second, *rest]):
            starred = any(isinstance(value, ast.Starred) for value in (first, second))
            if not starred and ast.dump(first) != ast.dump(second):
                new = ast.Call(node.func, [second, first, *rest], node.keywords)
                yield "swapped arguments", new
        case _:
            pass


def _is_another(owner: ast.AST, field: str, operator: str) -> bool:
    """Whether a test that notices others of the same place notices this change too."""
    match owner:
        case ast.JoinedStr():
            return True
        case ast.If(body=[_], orelse=[]) if field == "body":
            return operator == "dropped statement"  # as a condition that never holds
        case ast.If() | ast.IfExp() if field == "test":
            return operator == "comparison"  # as conditions that always hold, or never
        case _:
            return False


def _without_filters(
    node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
) -> Iterator[tuple[str, Located]]:
    for index, generator in enumerate(node.generators):
        if generator.ifs:
            free = _with(generator, ifs=[])
            generators = [*node.generators]
            generators[index] = free
            yield "dropped condition", _with(node, generators=generators)


def _with(node: Node, **fields: object) -> Node:
    """A copy of a node, whose other children are shared, with other fields."""
    new = type(node)(**{**dict(ast.iter_fields(node)), **fields})
    if isinstance(new, Located):
        ast.copy_location(new, node)
    return new


def _is_text(node: ast.expr) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return constant or isinstance(node, ast.JoinedStr)


def _last_line(node: Located) -> int:
    """Where it ends; of a statement that holds others, where its condition does."""
    if isinstance(node, ast.If | ast.While):
        node = node.test
    return node.end_lineno or node.lineno


def _line(node: Located) -> str:
    """The first line of a node in Python, as a program writes it."""
    return ast.unparse(node).partition("\n")[0]
