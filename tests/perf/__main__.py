"""`python tests/perf [NAME] [OPTIONS]`: one of the benchmarks, `system` without a name; `NAME --help` says more."""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
sys.path.insert(0, str(HERE.parent))

from perf.figures import end_in_order  # noqa: E402  # found by the line above

FOLDERS = (
    "admission",
    "burst",
    "decisions",
    "enrolment",
    "fleet",
    "kubernetes",
    "node_agent",
    "packing",
    "trace",
    "web",
)
MODULES = {
    "system": "perf.system",
    "closing": "perf.closing",
    "idle": "perf.idle",
    "slowed": "perf.slowed",
    "start": "perf.start",
    "moves": "perf.packing.moves",
    **{name: f"perf.{name}.command" for name in FOLDERS},
}


def main(words: list[str]) -> int:
    """Returns the exit code."""
    name, options = (words[0], words[1:]) if words and not words[0].startswith("-") else ("system", words)
    if name not in MODULES:
        sys.stderr.write(f"there is no benchmark {name!r}: name one of {', '.join(sorted(MODULES))}\n")
        return 2
    end_in_order()
    return int(importlib.import_module(MODULES[name]).main(options))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
