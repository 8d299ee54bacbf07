"""
Trace one real decision, from the reconciliation of a request to its Grant, and count the steps between modules.

    .venv/bin/python tools/decision_trace.py           # the counts
    .venv/bin/python tools/decision_trace.py --steps   # each step: depth, module, function

A step is a call from one module of the allocator's core into another. `placement` counts as one module: what happens
in there is a search, and has its own packages.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from factories.scheduling.allocator import claim  # noqa: E402  # found by the line above
from perf.decisions.system import System  # noqa: E402

CORE = "sluice_allocator.core."
BEGIN, END = "reconcile_request", "commit"
"""The functions between which steps count: a request is reconciled, and its Grant goes to the outbox."""


class Tracer:
    """A profile function that notes every call between two modules of the core."""

    def __init__(self) -> None:
        """Nothing was called yet."""
        self.steps: list[tuple[int, str, str]] = []
        """Depth, module and function."""
        self._stack: list[str] = []
        self._done = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call, or leave one."""
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(CORE) or frame.f_code.co_name.startswith("<"):
            return
        module = name.removeprefix(CORE)
        module = "placement" if module.startswith("placement") else module
        function = frame.f_code.co_name
        if event == "return" and self._stack:
            self._stack.pop()
        elif event == "call" and (self._stack or function == BEGIN):
            if not self._done and (not self._stack or self._stack[-1] != module):
                self.steps.append((len(self._stack), module, function))
            self._stack.append(module)
            self._done = self._done or (function == END and len(self.steps) > 1)


def trace() -> list[tuple[int, str, str]]:
    """The steps of the decision about the third pod that comes to a small fleet."""
    system = System(16)
    for name in ("first", "second"):
        system.arrive(name, claim())
    tracer = Tracer()
    sys.setprofile(tracer)
    try:
        system.arrive("third", claim())
    finally:
        sys.setprofile(None)
    return tracer.steps


def main() -> int:
    """Print the counts, and with --steps the steps."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", action="store_true", help="print each step")
    wanted = parser.parse_args()
    steps = trace()
    entered = Counter(module for _, module, _ in steps)
    if wanted.steps:
        for depth, module, function in steps:
            print(f"{'  ' * min(depth, 12)}{module}.{function}")
    print(f"{len(steps)} steps through {len(entered)} modules, from {BEGIN} to its Grant")
    for module, count in entered.most_common():
        print(f"{count:4} x {module}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
