"""`sluice bench` on real processes: small, but whole."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest


@pytest.mark.slow
def test_a_run_tells_its_figures_and_those_of_the_bare_broker(tmp_path):
    """Every request is served, nothing is granted twice, all is given back, and the ratio is of the same messages."""
    picture = tmp_path / "bench.svg"
    words = ("bench", "--requests", "6", "--nodes", "1", "--gpus", "2", "--processes", "1", "--within-s", "60")
    done = subprocess.run(
        [sys.executable, "-m", "sluice_console", *words, "--svg", str(picture), "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["requests"], told["bound"], told["refused"], told["overcommitted"]) == (6, 6, 0, 0)
    assert told["released"] is True
    assert min(told["latency_ratio_p50"], told["throughput_ratio"], told["seconds"]) > 0
    assert told["ceiling"]["messages"] >= 4 * told["bound"]  # asked, granted, ready and bound, of each
    assert [hop["hop"] for hop in told["hops"]][-1] == "asked to bound"
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")
