"""The bare broker of `sluice bench` is a real process, and ends with the benchmark."""

import os
import signal
import subprocess
import sys

from factories.agent_driver import runs
from factories.waiting import wait_until

PATIENCE_S = 60.0
MEASURES = """
import asyncio, sys
from pathlib import Path
import psutil
from sluice.runtime import logs
from sluice_console.shell.bench.bare_broker import bare_broker

async def measure():
    async with bare_broker(Path(sys.argv[1])):
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        await asyncio.Event().wait()

logs.configure(service="bench", run="a")  # else they are printed between
asyncio.run(measure())
"""


def test_kill_9_of_a_benchmark_leaves_no_broker_behind(tmp_path):
    """Each would hold its memory and port until a person finds it."""
    with subprocess.Popen([sys.executable, "-c", MEASURES, str(tmp_path)], stdout=subprocess.PIPE) as measures:
        broker = int(measures.stdout.readline())
        try:
            assert runs(broker)
            measures.send_signal(signal.SIGKILL)
            measures.wait(PATIENCE_S)
            wait_until(lambda: not runs(broker), "the broker ends")
        finally:
            measures.kill()
            if runs(broker):
                os.kill(broker, signal.SIGKILL)
