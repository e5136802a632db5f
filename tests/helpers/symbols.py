"""The names that a Python file defines, as a page may name them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def symbols(file: Path) -> frozenset[str]:
    """Functions, classes and constants, and `Class.name` for members of a class."""
    return frozenset(_of(ast.parse(file.read_text()).body))


@cache
def symbols_below(folder: Path) -> frozenset[str]:
    """Those of all files of a folder and its folders."""
    return frozenset().union(*map(symbols, folder.rglob("*.py")))


def _of(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.ClassDef():
                yield node.name
                inner = {*_of(node.body), *_attributes(node)}
                yield from (f"{node.name}.{name}" for name in inner)
            case ast.Assign():
                yield from map(ast.unparse, node.targets)
            case ast.AnnAssign():
                yield ast.unparse(node.target)
            case _:
                pass


def _attributes(of: ast.ClassDef) -> Iterator[str]:
    """The attributes that its methods set on `self`."""
    for node in ast.walk(of):
        match node:
            case ast.Attribute(ast.Name("self"), name, ast.Store()):
                yield name
            case _:
                pass
