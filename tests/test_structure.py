"""The product's tree: small folders, no circular imports, unique names of public classes."""

import ast
import gc
from collections import Counter, defaultdict
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOTS = [REPOSITORY / name for name in ("client_sdk", "server", "simulations", "strategies")]
MOST_MODULES = 20
"""Modules side by side in a folder, `__init__` and generated code apart."""

SHARED_NAMES = {
    "Break", "Filter", "Gate", "Hold", "Inspector", "Result", "Runs", "Span", "Updates", "Verdict",
}  # fmt: skip
"""Public class names that more than one module still defines. Take a name out once it is unique."""


def modules():
    """Every module of the product: its dotted name → its file."""
    found = {}
    for root in ROOTS:
        for path in (root / "fedloom").rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            if not parts[-1].endswith(("_pb2", "_pb2_grpc")):
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@pytest.fixture(scope="module")
def trees():
    """The parsed source of every module; garbage collection would take three times as long."""
    gc.disable()
    try:
        return {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}
    finally:
        gc.enable()


def imported(body, known):
    """The modules of `known` that these statements import when they run.

    Functions are left out, for they run later, and so is what only a type checker reads.
    """
    for statement in body:
        match statement:
            case ast.Import(names):
                yield from (each.name for each in names if each.name in known)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for each in names:
                    inner = f"{module}.{each.name}"
                    if inner in known:
                        yield inner
                    elif module in known:
                        yield module
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                yield from imported(orelse, known)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case _:
                for field in ("body", "orelse", "finalbody", "handlers"):
                    yield from imported(getattr(statement, field, ()), known)


def cycle(graph):
    """A cycle in a graph of names, or an empty list if there is none."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        path.append(name)
        for after in sorted(graph.get(name, ())):
            if found := visit(after):
                return found
        path.pop()
        done.add(name)
        return []

    for name in sorted(graph):
        if found := visit(name):
            return found
    return []


def test_a_folder_has_at_most_twenty_modules():
    """Larger folders are split by topic."""
    folders = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    crowded = {str(folder): n for folder, n in folders.items() if n > MOST_MODULES}
    assert not crowded


def test_modules_import_each_other_in_one_direction(trees):
    """No import cycles at import time."""
    graph = {name: set(imported(tree.body, MODULES)) - {name} for name, tree in trees.items()}
    assert " → ".join(cycle(graph)) == ""


def test_a_public_class_name_is_defined_once(trees):
    """In the whole product, with the listed exceptions."""
    places = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    unexpected = {name: where for name, where in shared.items() if name not in SHARED_NAMES}
    assert not unexpected


def replaced_when_empty(tree, sized):
    """Lines where an argument that may be empty, and then is false, is replaced by a new object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            last = node.values[-1]
            if isinstance(last, ast.Call) and getattr(last.func, "id", "") in sized:
                yield node.lineno


def test_an_empty_object_is_not_replaced(trees):
    """A class with a length, as one of watchers, is false without one: `x or Class()` drops it."""
    sized = {
        each.name
        for tree in trees.values()
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        and any(getattr(part, "name", "") in ("__len__", "__bool__") for part in each.body)
    }
    assert "Hub" in sized
    assert list(replaced_when_empty(ast.parse("hub = given or Hub()"), sized)) == [1]
    found = {name: list(replaced_when_empty(tree, sized)) for name, tree in trees.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b", {"a.b"}),
        ("from a import b, c", {"a.b", "a"}),
        ("try:\n    import a\nexcept ImportError:\n    import a.b", {"a", "a.b"}),
        ("class A:\n    import a", {"a"}),
        ("def f():\n    import a", set()),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import a.b", {"a.b"}),
    ],
)
def test_only_imports_of_import_time_count(source, expected):
    """Imports in functions and for type checkers cannot make a cycle."""
    assert set(imported(ast.parse(source).body, {"a", "a.b"})) == expected


def test_a_cycle_is_found():
    """The search returns the cycle, without the path to it."""
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}}) == []
