"""`sluice demo`: the first thing a new user runs."""

import os
import re
import signal
import sys
from typing import BinaryIO

import psutil
import pytest
from factories.processes import heeding_ctrl_c


async def test_the_demo_succeeds_and_leaves_nothing(up):
    """Exit 0, every act printed in under 90 lines, no process and no file left. `make demo` says how long it took."""
    printed = up.done("demo", timeout_s=100)
    for words in (
        "creatable_total 19",
        "largest that fits: 7g.40gb",
        "The daemon has ended",
        "nothing more fits",
        "has-to-wait waits: ",
        "mistake refused: ",
        "2 node agents report 0 instances on 4 GPUs: nothing is left",
        "sluice up --fleet examples/fleet.toml --pods pods",
        "The map is at http://127.0.0.1:8617/",
    ):
        assert words in printed
    for bar in (
        r"  gpu-[12] GPU [01] \[A whole-gpu 7g\.40gb +\] nothing more fits",
        r"[|\[][AB] 2 shares 3g\.20gb +[|\]]",
    ):
        assert re.search(bar, printed), bar
    assert len(printed.splitlines()) < 90
    assert not [process for process in psutil.process_iter(["environ"]) if belongs(process, up)]
    assert not list(up.temporary.iterdir())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_an_interrupted_demo_leaves_nothing(up, tmp_path, number, code):
    """In the middle of it. It is held while its children are counted: else it may be over by then."""
    with heeding_ctrl_c(), (tmp_path / "said").open("wb+") as said:
        process = psutil.Popen(
            (sys.executable, "-m", "sluice_console", "demo"), env=up.environment, stdout=said, stderr=said
        )
        up.process = process
        while True:
            process.suspend()
            children = process.children()
            if any("sluice_allocator" in child.cmdline() for child in children):
                break
            process.resume()
            assert process.poll() is None, said_in(said)
            psutil.wait_procs([process], timeout=0.05)
        process.send_signal(number)
        process.resume()
        assert process.wait(60) == code, said_in(said)
        assert b"Traceback" not in said_in(said)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert not list(up.temporary.iterdir())


def said_in(file: BinaryIO) -> bytes:
    return os.pread(file.fileno(), 1 << 20, 0)


def belongs(process: psutil.Process, up) -> bool:
    return (process.info["environ"] or {}).get("TMPDIR") == str(up.temporary)
