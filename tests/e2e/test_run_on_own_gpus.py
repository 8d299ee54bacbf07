"""`sluice run` on this machine's own GPUs, which are those of our NVML library: nothing stays on them."""

import asyncio
import subprocess
import sys

import psutil
import pytest
from factories.agent_driver import short_folder
from factories.gpus.nvml import NvmlMachine
from factories.processes import own_environment

RUN = (sys.executable, "-m", "sluice_console", "run", "--real", "--profile", "1g.5gb", "--")


@pytest.fixture
def machine(nvml_library):
    """One A100 with MIG, and nothing of Sluice."""
    with short_folder() as folder:
        made = NvmlMachine(nvml_library, folder / "machine", state=folder / "nvml.state")
        made.add_gpu("a100-40gb")
        for name in ("runtime", "tmp"):
            (folder / name).mkdir()
        made.folder = folder
        yield made


def environment(machine):
    return own_environment() | machine.environment() | {
        "XDG_RUNTIME_DIR": str(machine.folder / "runtime"),
        "XDG_STATE_HOME": str(machine.folder / "s"),
        "TMPDIR": str(machine.folder / "tmp"),
        "SLUICE_NODE_AGENT_MPS_CONTROL": "off",
    }  # fmt: skip


def instances(machine):
    return [line for line in machine.show() if line[0] in {"gi", "ci"}]


async def test_a_killed_run_leaves_no_instance_on_a_real_gpu(machine):
    """A reboot would be needed to get it back; the system of the run outlives the runner until it is gone."""
    run = psutil.Popen(
        (*RUN, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; exec sleep 999"), env=environment(machine),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    family = []
    try:
        assert (await asyncio.to_thread(run.stdout.readline)).startswith("MIG-"), run.stderr.read()
        assert instances(machine)
        family = run.children(recursive=True)
        run.kill()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, family, 40)
        assert not alive
        assert gone
        assert "starting one for this run, on the GPUs of this machine" in run.stderr.read()
    finally:
        for each in (run, *family):
            if each.is_running():
                each.kill()
        run.wait(60)
        run.stdout.close()
        run.stderr.close()
    assert not instances(machine)
    assert not list((machine.folder / "runtime").iterdir())
