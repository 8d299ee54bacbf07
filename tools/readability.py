"""
Count what makes code and pages hard to read, and fail when a count is above its ceiling.

    .venv/bin/python tools/readability.py            # print every count
    .venv/bin/python tools/readability.py --lower    # write counts that went down as the new ceilings
    .venv/bin/python tools/readability.py --list X   # print where the things of one count stand

`tools/readability.toml` holds the words, the terms of the field and the ceilings. Spelling is codespell's part; no
linter for prose keeps ceilings per folder, or tells a string that a user reads from a docstring.
"""

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "tools" / "readability.toml"
PACKAGES = re.compile(r"^(services/[\w-]+/\w+|libs/sluice)/")
WORD = re.compile(r"[A-Za-z0-9]")
SHOWN = 5
"""Places that are listed for a count above its ceiling."""

Places = dict[str, list[str]]
"""A count's name, and where each of what it counts stands, as `path:line: what`."""


def tracked() -> list[str]:
    """Paths of the files that git knows or would add, without generated ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [path for path in listed if "_pb2" not in path and (ROOT / path).is_file()]


def counted(config: dict[str, Any]) -> Places:
    """Everything that has a ceiling."""
    files = tracked()
    trees = {
        path: ast.parse((ROOT / path).read_text()) for path in files if path.endswith(".py") and PACKAGES.match(path)
    }
    places: Places = defaultdict(list)
    names(config["names"], trees, places)
    words(config["words"], files, trees, places)
    pages(config["pages"], files, places)
    return places


# -- names ------------------------------------------------------------------------------------------------------------


def names(config: dict[str, Any], trees: dict[str, ast.Module], places: Places) -> None:
    """Modules that end in -ing, crowded folders, and classes of one service that share a name."""
    for path in trees:
        stem = Path(path).stem
        if stem.endswith("ing") and stem not in config["field"]:
            places["names: modules that end in -ing"].append(path)
    folders = Counter(str(Path(path).parent) for path in trees if not path.endswith("__init__.py"))
    for folder, count in folders.items():
        if count > config["modules_max"]:
            places[f"names: folders of more than {config['modules_max']} modules"].append(f"{folder}: {count}")
    classes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, tree in trees.items():
        service = path.split("/")[1] if path.startswith("services/") else "libs"
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[service, node.name].append(f"{path}:{node.lineno}")
    for (service, name), where in sorted(classes.items()):
        if len(where) > 1:
            places["names: classes of one service that share a name"].append(f"{service} {name}: {', '.join(where)}")


# -- words ------------------------------------------------------------------------------------------------------------


def words(config: dict[str, Any], files: list[str], trees: dict[str, ast.Module], places: Places) -> None:
    """Words that make prose hard to read: per folder, and apart from that in strings that a user reads."""
    pattern = re.compile("|".join(rf"\b(?:{word})\b" for word in config["avoid"]), re.IGNORECASE)
    visible_docstrings = tuple(config["visible_docstrings"])
    for path in files:
        if not path.endswith(tuple(config["kinds"])) or path.startswith(tuple(config["skip"])):
            continue
        text = (ROOT / path).read_text()
        visible = set()
        if path in trees:
            visible = set(_visible(trees[path], with_docstrings=path.startswith(visible_docstrings)))
        elif path.startswith(tuple(config["visible"])):
            visible = set(range(1, text.count("\n") + 2))
        for number, line in enumerate(text.splitlines(), 1):
            for match in pattern.finditer(line):
                kind = "words: what a user reads" if number in visible else f"words: {_folder(path)}"
                places[kind].append(f"{path}:{number}: {match[0]}")
    for path, tree in trees.items():
        if "must not" in " ".join((ast.get_docstring(tree) or "").split()).lower():
            places["words: module docstrings that say what must not be"].append(f"{path}:1")


def _folder(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] in ("services", "libs", "tests") and len(parts) > 2 else parts[0]


def _visible(tree: ast.Module, *, with_docstrings: bool) -> Iterator[int]:
    """Lines of the strings that may be shown: all but docstrings, unless these are the help of commands."""
    docstrings = {id(one.value) for node in ast.walk(tree) for one in _docstrings(node) if not with_docstrings}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _docstrings(node: ast.AST) -> list[ast.Expr]:
    """Strings that stand alone in a body: docstrings of what surrounds them, or of the assignment before them."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return []
    return [one for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]


# -- pages ------------------------------------------------------------------------------------------------------------


def pages(config: dict[str, Any], files: list[str], places: Places) -> None:
    """Words of all pages under docs/, and lines of some pages, beyond what they may have."""
    docs = [path for path in files if path.startswith("docs/") and path.endswith(".md")]
    every = [path for path in docs for token in (ROOT / path).read_text().split() if WORD.search(token)]
    if beyond := every[config["words_max"] :]:
        places[f"pages: words under docs/ beyond {config['words_max']}"] = beyond
    for path in files:
        if path in config["lines_max"]:
            lines = (ROOT / path).read_text().splitlines()
            most = config["lines_max"][path]
            if beyond := lines[most:]:
                places[f"pages: lines of {path} beyond {most}"] = [f"{path}:{most}"] * len(beyond)


# -- ceilings ---------------------------------------------------------------------------------------------------------


def judged(places: Places, ceilings: dict[str, int]) -> list[str]:
    """What is wrong: counts above their ceilings, with places, and ceilings that can go down."""
    wrong = []
    for name in sorted({*places, *ceilings}):
        count, ceiling = len(places.get(name, ())), ceilings.get(name, 0)
        if count > ceiling:
            shown = "".join(f"\n    {place}" for place in places[name][-SHOWN:])
            wrong.append(f"{name}: {count}, and {ceiling} is the ceiling; the last ones:{shown}")
        elif count < ceiling:
            wrong.append(f"{name}: {count}, below its ceiling of {ceiling}: run tools/readability.py --lower")
    return wrong


def lowered(places: Places, ceilings: dict[str, int]) -> dict[str, int]:
    """Ceilings after all that can go down went down; those at zero need no line."""
    return {name: count for name, old in sorted(ceilings.items()) if (count := min(old, len(places.get(name, ()))))}


def main() -> int:
    """Print the counts; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--lower", action="store_true", help="write counts that went down as the new ceilings")
    parser.add_argument("--list", metavar="COUNT", help="print all places of one count")
    arguments = parser.parse_args()
    text = CONFIG.read_text()
    config = tomllib.loads(text)
    ceilings = config.get("ceilings", {})
    places = counted(config)
    if arguments.list:
        print("\n".join(places.get(arguments.list, [])))
        return 0
    if arguments.lower:
        head = text.split("[ceilings]")[0]
        lines = "".join(f'"{name}" = {count}\n' for name, count in lowered(places, ceilings).items())
        CONFIG.write_text(f"{head}[ceilings]\n{lines}")
        ceilings = lowered(places, ceilings)
    for name in sorted({*places, *ceilings}):
        print(f"{len(places.get(name, ())):>5} of {ceilings.get(name, 0):<5} {name}")
    wrong = judged(places, ceilings)
    print("\n".join(wrong), file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
