"""`python tests/perf [NAME] [OPTIONS]`: one of the benchmarks, `system` without a name; `NAME --help` says more."""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from factories.long_runs import end_in_order  # noqa: E402  # found by the line above

MODULES = {
    **{name: f"perf.{name}" for name in ("system", "closing", "idle", "slowed", "start")},
    **{file.parent.name: f"perf.{file.parent.name}.command" for file in HERE.glob("*/command.py")},
    "moves": "perf.packing.moves",
}


def main(words: list[str]) -> int:
    name, options = (words[0], words[1:]) if words and not words[0].startswith("-") else ("system", words)
    if name not in MODULES:
        sys.stderr.write(f"there is no benchmark {name!r}: name one of {', '.join(sorted(MODULES))}\n")
        return 2
    end_in_order()
    return int(importlib.import_module(MODULES[name]).main(options))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
