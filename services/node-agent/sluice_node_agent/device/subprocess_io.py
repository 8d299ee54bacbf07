"""
One input to a program and its output: bounded in time and in size, through a pipe: a program that prints without end
fills no disk, and children that it leaves behind get SIGPIPE.
"""

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_LOOK_S = 0.02
"""How often to check whether the program has ended while a child of it holds its output open."""
_READ_BYTES = 64 * 1024


def communicate(
    command: Sequence[str | Path], said: bytes, environment: Mapping[str, str], timeout_s: float, *, bytes_max: int
) -> tuple[int, bytes]:
    """
    Run a program with `said` on stdin; returns its exit status and output. One that prints more than `bytes_max` is
    killed; its output is then longer than that. Raises OSError when it cannot be run, and TimeoutError.
    """
    until = time.monotonic() + max(timeout_s, _LOOK_S)
    with subprocess.Popen(  # noqa: S603 - a program that an operator configured
        [*command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        cwd="/",
        start_new_session=True,
        bufsize=0,
    ) as process:
        try:
            _say(process, said)
            answer = _hear(process, until, bytes_max)
            if len(answer) > bytes_max:
                process.kill()
            return process.wait(max(until - time.monotonic(), _LOOK_S)), answer
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            if process.poll() is None:
                process.kill()


def _say(process: "subprocess.Popen[bytes]", said: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:  # it may not read its input
        process.stdin.write(said)


def _hear(process: "subprocess.Popen[bytes]", until: float, bytes_max: int) -> bytes:
    """Its output until it ends, or one byte too many. Raises TimeoutError."""
    assert process.stdout is not None
    answer = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(answer) <= bytes_max:
            has_ended = process.poll() is not None
            if selector.select(0 if has_ended else _LOOK_S):
                part = os.read(process.stdout.fileno(), min(_READ_BYTES, bytes_max + 1 - len(answer)))
                if not part:
                    break
                answer += part
            elif has_ended:
                break
            if time.monotonic() > until:
                raise TimeoutError
    return bytes(answer)
