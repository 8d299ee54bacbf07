"""Starts the CUDA process of `cuda_client.py` and talks to it; every wait has a bound, and no process is left."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

SCRIPT = Path(__file__).with_name("cuda_client.py")
ANSWER_WITHIN_S = 90.0
"""The first context of a fresh driver may take many seconds."""
LOOK_EVERY_S = 0.1

T = TypeVar("T")


class Client:
    """One CUDA process, as a context. `variables` are what its environment has of CUDA."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        self._process = subprocess.Popen(
            (sys.executable, "-I", "-S", str(SCRIPT)),
            env=plain | dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._rest = b""
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, **values: object) -> dict[str, object]:
        """One command and its answer. Raises AssertionError when none comes in time."""
        self._process.stdin.write(json.dumps({"do": do} | values).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> bytes:
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            assert left > 0, f"the CUDA process did not answer within {ANSWER_WITHIN_S:g} s"
            if self._selector.select(left):
                more = os.read(self._process.stdout.fileno(), 65536)
                assert more, f"the CUDA process ended: {self._said()}"
                self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _said(self) -> str:
        self._process.wait(10)
        return self._process.stderr.read().decode(errors="replace").strip()[-500:]

    def ended(self, within_s: float) -> bool:
        """Whether it ends by itself in time."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it: by the end of its input, or by force."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        if not self.ended(20.0):
            self._process.kill()
            self._process.wait(20)
        self._selector.close()
        for pipe in (self._process.stdout, self._process.stderr):
            pipe.close()


def until(look: Callable[[], T], good: Callable[[T], bool], what: str, within_s: float = 30.0) -> T:
    """What `look` returns once it is `good`. Raises AssertionError with the last of it after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if good(seen):
            return seen
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}; last seen: {seen}"
        time.sleep(LOOK_EVERY_S)
