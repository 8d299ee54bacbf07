"""`sluice demo`: the first thing anyone runs."""

import signal
import sys

import psutil
import pytest

pytestmark = pytest.mark.timeout(120)


async def test_the_demo_succeeds_and_leaves_nothing(up):
    """Exit 0, every act told, no process and no file left. `make demo` says how long it took."""
    result = up.sluice("demo", timeout_s=100)
    assert result.returncode == 0, result.stdout + result.stderr
    for words in (
        "creatable_total 19",
        "MPS daemon ready",
        "The daemon has ended",
        "nothing more fits",
        "has-to-wait waits: ",
        "mistake refused: ",
        "2 node agents report 0 instances on their 4 GPUs: nothing is left",
    ):
        assert words in result.stdout
    assert not [process for process in psutil.process_iter(["environ"]) if belongs(process, up)]
    assert not list(up.temporary.iterdir())


async def test_an_interrupted_demo_leaves_nothing(up):
    """Ctrl-C in the middle of it."""
    process = psutil.Popen((sys.executable, "-m", "sluice_console", "demo"), env=up.environment, stdout=-3, stderr=-3)
    up.process = process
    while not any("sluice_allocator" in child.cmdline() for child in process.children()):
        assert process.poll() is None
        psutil.wait_procs([process], timeout=0.1)
    children = process.children()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    assert not list(up.temporary.iterdir())


def belongs(process: psutil.Process, up) -> bool:
    """Whether a process was started by this test."""
    return (process.info["environ"] or {}).get("TMPDIR") == str(up.temporary)
