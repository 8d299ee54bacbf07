"""`sluice up`: the whole system as processes, from a manifest in a folder to a slice on a device, and back."""

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from factories.gpus.nvml import has_a_driver

from sluice.runtime.bus import BusError
from sluice.runtime.nats.connection import Connection
from sluice_console.shell.live.agent_snapshots import snapshots
from sluice_console.shell.live.local_user import FILE


def text_of(file):
    """Nothing of one that its process has just removed."""
    with suppress(FileNotFoundError):
        return file.read_text(errors="replace")
    return ""


async def test_another_user_of_the_machine_owns_nothing(emptied):
    """Any process could order, move and delete everything on a bus without users; the password is its owner's."""
    running = emptied.running
    with pytest.raises(BusError, match="does not accept these credentials"):
        await Connection.open(running.nats_url, name="stranger", within_s=5)
    data = Path(running.data_dir)
    password = (data / FILE).read_text().strip()
    files = await asyncio.to_thread(lambda: [file for file in data.rglob("*") if file.is_file()])
    holding = [file for file in files if password in text_of(file)]
    assert {file.name for file in holding} == {FILE, "nats-server.conf"}
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in holding)
    assert password not in emptied.said()


async def test_a_pod_in_the_folder_gets_a_slice_and_gives_it_back(emptied):
    """The whole journey, and what every command shows of it."""
    up, running = emptied, emptied.running
    async with up.watching() as watching:
        up.add("by-profile", "two-containers")
        pod = await watching.bound("by-profile")
        both = await watching.bound("two-containers")
        assert pod.containers[0].visible_devices.startswith("MIG-")
        assert {part.container for part in both.containers} == {"trainer", "server"}
        shown = up.done("gpus")
        assert "by-profile 4g.20gb" in shown
        assert "default/two-containers  3g.20gb" in shown
        assert "by-profile" in up.sluice("pods").stdout
        assert "default/by-profile" in up.done("usage")
        story = up.done("explain", "by-profile")
        for words in ("asks for 4g.20gb", "is granted", "slice is ready", "is bound to", "now: has 4g.20gb"):
            assert words in story
        up.remove("by-profile")
        up.remove("two-containers")
        await watching.empty()
        news = watching.live.fleet_state.news()
        found = await snapshots({node: message.address for node, message in news.items()})
        assert {str(snapshot.node) for snapshot in found} == set(running.nodes)
        assert not [place for snapshot in found for gpu in snapshot.gpus for place in gpu.instances]
        assert not [report for snapshot in found for report in snapshot.slices]
    told = up.sluice("events").stdout
    for words in ("default/by-profile  is bound to", "slice is gone", "default/by-profile  was released"):
        assert words in told
    assert "was released" in up.sluice("explain", "by-profile").stdout
    ended = up.sluice("pods", "--all").stdout
    assert {line.split()[0] for line in ended.splitlines()[1:]} == {"default/by-profile", "default/two-containers"}


async def test_ctrl_c_leaves_no_process_and_no_file(up):
    """A temporary data directory is really temporary, and a stopped system is not found any more."""
    up.start(data=False)
    assert (await up.ready()).data_dir == str(next(up.temporary.iterdir()))
    before = [up.process, *up.children()]
    assert len(before) > 1
    assert up.interrupt() == 0, up.said()
    assert not psutil.wait_procs(before, timeout=60)[1]
    assert not list(up.temporary.iterdir())
    assert not list(up.runtime.iterdir())
    nothing = up.sluice("gpus")
    assert nothing.returncode == 3
    assert "nothing is running" in nothing.stderr


async def test_a_slice_survives_stopping_and_starting_everything(up):
    """With --data, a reboot of the control plane is not felt by a running pod."""
    await up.started()
    up.add("by-percentage")
    async with up.watching() as watching:
        before = await watching.bound("by-percentage")
    assert up.interrupt() == 0, up.said()
    up.log.unlink()
    await up.started()
    async with up.watching() as watching:
        after = await watching.bound("by-percentage")
        assert (after.request, after.containers) == (before.request, before.containers)


async def test_a_second_up_on_the_same_data_is_refused_and_the_first_goes_on(shared):
    """Two brokers on one store would destroy it."""
    up = shared
    arguments = ("--fleet", str(up.fleet), "--pods", str(up.pods_dir), "--data", str(up.data_dir))
    second = await asyncio.to_thread(up.sluice, "up", *arguments)
    assert second.returncode == 1
    assert "already uses the data directory" in second.stderr
    up.done("gpus")
    os.kill(up.process.pid, 0)


async def test_many_nodes_share_processes_and_two_allocators_share_the_work(up):
    """`--processes` and `--allocators`."""
    await up.started("--processes", "1", "--allocators", "2")
    lines = [" ".join(child.cmdline()) for child in up.children()]
    assert sum("sluice_node_agent" in line for line in lines) == 1
    assert sum("sluice_allocator" in line for line in lines) == 2
    async with up.watching() as watching:
        up.add("two-gpus")
        assert len((await watching.bound("two-gpus")).containers[0].visible_devices.split(",")) == 2


@pytest.mark.skipif(has_a_driver(), reason="this machine has an NVIDIA driver")
@pytest.mark.parametrize("command", ["up", "run"])
async def test_a_machine_without_a_gpu_is_told_in_one_sentence_what_to_do_instead(up, command):
    """Not the same line of JSON again and again: the library is not there a second later either."""
    what = {
        "up": ("up", "--data", str(up.data_dir), "--pods", str(up.pods_dir), "--web", "off"),
        "run": ("run", "--real", "--", "true"),
    }[command]
    up.environment["XDG_STATE_HOME"] = str(up.temporary / "state")
    done = up.sluice(*what)
    assert done.returncode == {"up": 1, "run": 125}[command]
    (sentence,) = [line for line in done.stderr.splitlines() if "libnvidia-ml.so.1" in line]
    assert "cannot work: the NVIDIA driver's library libnvidia-ml.so.1 was not found" in sentence
    assert "without a GPU --fleet FILE simulates some (examples/fleet.toml)" in sentence
    assert "starting it again" not in done.stderr + done.stdout
    assert "{" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("SLUICE_LOG_LEVEL", "loud", "sluice: SLUICE_LOG_LEVEL is 'loud'"),
        ("SLUICE_CONFIG", "/nonexistent", "sluice: the settings file /nonexistent cannot be read"),
        ("SLUICE_ALLOCATOR_TICK_S", "soon", "cannot work: sluice-allocator: SLUICE_ALLOCATOR_TICK_S is 'soon'"),
        ("SLUICE_METRICS_ADDRESS", "127.0.0.1:PORT", "cannot work: metrics cannot be served at 127.0.0.1:PORT: "),
    ],
)
async def test_what_a_restart_cannot_heal_ends_the_start(up, variable, value, sentence):
    """A wrong setting, a port that another has: one sentence, and nothing is left running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        up.environment[variable] = value.replace("PORT", port)
        sentence = sentence.replace("PORT", port)
        done = up.sluice("up", "--fleet", str(up.fleet), "--pods", str(up.pods_dir), "--web", "off")
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("sluice: ")]
    assert sentence in said
    assert "starting it again" not in done.stderr + done.stdout
    assert not list(up.temporary.iterdir())
