"""A question of a core changes nothing: a reader may ask it anywhere, in any order, as often as wanted.

Functions that are named like a question are walked as syntax trees, with everything in the core that they call by
name. A change is an assignment, a deletion or a mutating call on anything that the function did not make itself.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice_allocator.core
import sluice_inventory.core
import sluice_node_agent.core
import sluice_pod_watcher.core

CORES = {
    each.__name__: Path(next(iter(each.__path__)))
    for each in (sluice_allocator.core, sluice_inventory.core, sluice_node_agent.core, sluice_pod_watcher.core)
}
QUESTION = re.compile(r"^_?(is|are|may|why|must|has|have|was|were|can|holds|waits|leads|joins|needs|forbids)_")
MUTATORS = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
        "sort",
        "subtract",
        "update",
        "heappush",
        "heappop",
    ]
)
COMMANDS = frozenset({"commit", "keep", "cancel", "forget"})
"""Of the outbox, which is no part of a core."""
CACHES = {
    "placement": "searches remember what they computed, in indexes that the next booking brings up to date",
    "least_of": "the least usage of equal claims, computed once",
    "sum_up": "the sum of what is not booked, brought up to date when it is read",
    "avoided": "drops GPUs whose time of being avoided is over",
    "room_us": "drops use that the window of a limit no longer covers",
    "word": "a request as its source would publish it, made when it is read",
}
"""Functions, or a package, that may remember what they were asked."""


def functions(core: Path) -> dict[str, list[ast.FunctionDef]]:
    """All functions and methods of a core outside the caches, by name."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for path in sorted(core.rglob("*.py")):
        if path.relative_to(core).parts[0] not in CACHES:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.name not in CACHES:
                    found.setdefault(node.name, []).append(node)
    return found


def root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def own(function: ast.FunctionDef) -> set[str]:
    """Names that are bound to something the function made itself."""
    made = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Tuple, ast.Constant)
    names: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_call = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        if isinstance(node.value, made) or is_call or root(node.value) in names:
            names |= {each.id for each in targets if isinstance(each, ast.Name)}
    return names


def changes(function: ast.FunctionDef) -> Iterator[str]:
    mine = own(function)
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = list(node.targets)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            targets = [node.func]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COMMANDS:
            yield f"calls {ast.unparse(node.func)}"
        for target in targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)) and root(target) not in mine:
                yield f"changes {ast.unparse(target)}"


def called(function: ast.FunctionDef) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in calls
        if hasattr(each, "id") or hasattr(each, "attr")
    }


def why_changes(name: str, known: dict[str, list[ast.FunctionDef]], seen: set[str]) -> str | None:
    """What a function of this name changes, itself or by what it calls."""
    for function in known.get(name, ()):
        for what in changes(function):
            return f"{name} {what}"
        for other in sorted(called(function) - seen - MUTATORS):
            seen.add(other)
            why = why_changes(other, known, seen) if other in known else None
            if why is not None:
                return f"{name} -> {why}"
    return None


@pytest.mark.parametrize("core", CORES)
def test_a_question_changes_nothing(core):
    """A question that writes `Closed` to the ledger was one of them."""
    known = functions(CORES[core])
    found = [why for name in sorted(known) if QUESTION.match(name) and (why := why_changes(name, known, {name}))]

    assert not found, "\n".join(found)


def test_a_question_with_an_effect_is_found():
    """Otherwise the test above would pass whatever is written."""
    code = "def is_new(key):\n    return note(key)\n\ndef note(key):\n    return self.known.setdefault(key)\n"
    known = {node.name: [node] for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}

    assert why_changes("is_new", known, {"is_new"}) == "is_new -> note changes self.known.setdefault"
