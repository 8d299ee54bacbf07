"""The counts of tools/readability.py: a word or a name that it overlooks comes back into code and pages."""

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULE = "services/x/sluice_x/a.py"
CONFIG = {
    "names": {"modules_max": 2, "field": ["scheduling"]},
    "words": {
        "avoid": ["gadget", "is odd"],
        "kinds": [".py", ".md"],
        "skip": ["docs/adr/"],
        "visible": ["README.md"],
        "visible_docstrings": ["services/console/"],
    },
    "pages": {"words_max": 5, "lines_max": {"README.md": 3}},
}


@pytest.fixture
def readability(tmp_path: Path, monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("readability", ROOT / "tools" / "readability.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize(
    ("path", "text", "count"),
    [
        ("services/x/sluice_x/telling.py", "", "names: modules that end in -ing"),
        ("services/x/sluice_x/scheduling.py", "", None),
        (MODULE, "class A: ...\nclass B:\n    class A: ...\n", "names: classes of one service that share a name"),
        (MODULE, "def f():\n    '''Gadget.'''\n", "words: services/x"),
        (MODULE, "x = f'{1}: it is odd'  # fine\n", "words: what a user reads"),
        (MODULE, "x = 1\n'''It is odd.'''\n", "words: services/x"),
        ("services/console/sluice_console/a.py", "def f():\n    '''Gadget.'''\n", "words: what a user reads"),
        ("README.md", "# Gadget\n", "words: what a user reads"),
        ("README.md", "1\n2\n3\n4\n", "pages: lines of README.md beyond 3"),
        ("docs/a.md", "gadget\n", "words: docs"),
        ("docs/a.md", "one | two | three | four | 5\n", None),
        ("docs/a.md", "one two three four five 6\n", "pages: words under docs/ beyond 5"),
        ("docs/adr/a.md", "gadget\n", None),
        ("docs/a.md", "nongadget\n", None),
        (MODULE, "'''It must\nnot be.'''\n", "words: module docstrings that say what must not be"),
    ],
)
def test_what_hurts_a_reader_is_counted_where_it_stands(
    readability, tmp_path: Path, path: str, text: str, count: str | None
):
    """Each count finds its case, and nothing else does."""
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert list(readability.counted(CONFIG)) == ([count] if count else [])


def test_a_folder_that_grew_too_long_to_skim_is_counted(readability, tmp_path: Path):
    """Two modules fit into it, a third does not; its __init__.py is none."""
    folder = tmp_path / "libs" / "sluice" / "x"
    folder.mkdir(parents=True)
    for name in ("__init__", "a", "b"):
        (folder / f"{name}.py").touch()
    assert not readability.counted(CONFIG)
    (folder / "c.py").touch()
    assert list(readability.counted(CONFIG)) == ["names: folders of more than 2 modules"]


def test_a_ceiling_goes_down_and_never_up(readability):
    """Above it the check fails; below it the ceiling has to follow, so that what was won is not lost."""
    places = {"a": ["x"] * 3, "b": ["x"]}
    assert not readability.judged(places, {"a": 3, "b": 1})
    (above,) = readability.judged(places, {"a": 2, "b": 1})
    assert above.startswith("a: 3, and 2 is the ceiling")
    (below,) = readability.judged(places, {"a": 3, "b": 1, "c": 1})
    assert below.startswith("c: 0, below its ceiling of 1")
    assert readability.lowered(places, {"a": 2, "b": 5, "c": 1}) == {"a": 2, "b": 1}
