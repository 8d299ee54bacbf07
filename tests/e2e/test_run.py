"""`sluice run`: a command on a slice of its own, which is released whichever process is killed."""

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from factories.agent_driver import runs
from factories.processes import heeding_ctrl_c
from factories.waiting import wait_until

from sluice.contracts.messages import AllocationRequested
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import NotAnsweringError, following
from sluice_console.shell.live.running_systems import RunningSystem

RUN = (sys.executable, "-m", "sluice_console", "run", "--profile", "1g.5gb")
FREE_WITHIN_S = 15.0
"""Three times what docs/run.md promises after kill -9, for machines with much to do."""
DONE_WITHIN_S = 60.0


@contextlib.contextmanager
def running(up, *command, options=(), **how):
    """A `sluice run` as a job of its own, as a shell starts it; nothing of it is left afterwards."""
    sizes = () if "--profile" in options else RUN[4:]
    run = psutil.Popen(
        (*RUN[:4], *sizes, *options, "--", *command), env=up.environment, text=True, process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
    )  # fmt: skip
    family = []
    try:
        yield run
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [run, *run.children(recursive=True)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        run.wait(60)
        for stream in (run.stdin, run.stdout, run.stderr):
            if stream is not None:
                stream.close()


def written(file: Path) -> list[int]:
    """Process ids that a command has written, once they are there."""
    text = wait_until(lambda: file.exists() and file.read_text().endswith("\n") and file.read_text(), f"{file}")
    return [int(word) for word in text.split()]


@pytest.fixture(autouse=True)
def as_from_a_terminal():
    with heeding_ctrl_c():
        yield


async def free(up, *, tidy=True):
    async with connected(up.running.nats_url) as bus, following(bus) as live:
        await live.until(
            lambda fleet_state: (
                not fleet_state.bookings()
                and not any(True for _ in fleet_state.of("request", AllocationRequested))
                and all(not gpu.instances for each in fleet_state.inventories().values() for gpu in each.snapshot.gpus)
            ),
            within_s=FREE_WITHIN_S,
            what="every slice to be free",
        )
    assert not tidy or not list(up.pods_dir.iterdir())


async def done(up, *words, **changes):
    """A whole `sluice run` as typed in a shell, in a process group of its own: an orphaned one would get SIGHUP."""
    how = {"env": up.environment, "capture_output": True, "text": True, "timeout": DONE_WITHIN_S, "process_group": 0}
    how |= changes
    return await asyncio.to_thread(subprocess.run, (*RUN[:4], *words), check=False, **how)


async def test_a_command_gets_its_slice_its_streams_and_its_exit_code(shared):
    """As if the shell had started it: nothing of ours in its output."""
    shell = 'read line; echo "$line $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES"; exit 7'
    mine = shared.environment | {"CUDA_VISIBLE_DEVICES": "0"}
    ran = await done(shared, "--profile", "1g.5gb", "--", "sh", "-c", shell, env=mine, input="hello\n")
    assert ran.returncode == 7, ran.stderr
    word, cuda, nvidia = ran.stdout.split()
    assert word == "hello"
    assert cuda == nvidia
    assert cuda.startswith("MIG-")
    assert "has 1g.5gb on gpu-" in ran.stderr
    await free(shared)


async def test_a_command_has_of_the_driver_what_its_caller_chose_or_its_profile_is_made_for(shared):
    """A transcoder on an instance with the media engines would be allowed to compute only."""
    print_it = ("--", "printenv", "NVIDIA_DRIVER_CAPABILITIES")
    without = {name: value for name, value in shared.environment.items() if name != "NVIDIA_DRIVER_CAPABILITIES"}
    ran = await done(shared, "--profile", "1g.5gb+me", *print_it, env=without)
    assert (ran.returncode, ran.stdout.strip()) == (0, "compute,utility,video"), ran.stderr
    chosen = without | {"NVIDIA_DRIVER_CAPABILITIES": "compute,graphics"}
    ran = await done(shared, "--profile", "1g.5gb", *print_it, env=chosen)
    assert (ran.returncode, ran.stdout.strip()) == (0, "compute,graphics"), ran.stderr
    await free(shared)


async def test_a_share_is_told_its_daemon_and_its_limits(shared):
    """Without them its processes would run beside the daemon, or not start. A signal's number is reported."""
    options = ("--mode", "fractional", "--sm", "20", "--memory", "2Gi")
    ran = await done(shared, *options, "--", "sh", "-c", "env; kill -SEGV $$")
    assert ran.returncode == 128 + signal.SIGSEGV, ran.stderr
    told = dict(line.split("=", 1) for line in ran.stdout.splitlines() if line.startswith(("CUDA_", "NVIDIA_")))
    wanted = ("PIPE_DIRECTORY", "LOG_DIRECTORY", "ACTIVE_THREAD_PERCENTAGE", "PINNED_DEVICE_MEM_LIMIT")
    assert told.keys() >= {f"CUDA_MPS_{name}" for name in wanted}
    await free(shared)


VICTIMS = ("runner", "command", "both", "group", "keeper", "runner and keeper")


async def test_whatever_is_killed_the_slice_comes_back_and_nothing_runs_on_it(shared, tmp_path):
    """A slice with a process of its last tenant would be granted twice; one kept without a request is lost."""
    async with contextlib.AsyncExitStack() as stack:
        families = {}
        for victims in VICTIMS:
            pids = tmp_path / victims
            # It ignores SIGTERM, and has a child and a daemon in a session of its own.
            shell = f"trap '' TERM; sleep 999 & setsid sleep 999 & echo $$ $(jobs -p) > '{pids}'; wait; sleep 999"
            families[victims] = stack.enter_context(running(shared, "bash", "-c", shell)), pids
        members = {}
        for victims, (run, pids) in families.items():
            command, *rest = written(pids)
            keeper = psutil.Process(command).ppid()
            assert len(rest) == 2
            members[victims] = run, keeper, command, rest
        for victims, (run, keeper, command, _) in members.items():
            doomed = {
                "runner": [run.pid], "command": [command], "both": [run.pid, command], "keeper": [keeper],
                "runner and keeper": [run.pid, keeper],
            }  # fmt: skip
            for pid in doomed.get(victims, []):
                os.kill(pid, signal.SIGKILL)
            if victims == "group":
                os.killpg(run.pid, signal.SIGKILL)
        orphans = members["runner and keeper"][3]  # no process is left to end them: the slice stays theirs
        await only_left(shared, 1)
        assert all(runs(pid) for pid in orphans)
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        await free(shared, tidy=False)
        for victims, (run, keeper, command, rest) in members.items():
            assert not [pid for pid in (command, keeper, *rest) if runs(pid)], victims
            code = await asyncio.to_thread(run.wait, DONE_WITHIN_S)
            assert code == (137 if victims in {"command", "keeper"} else -signal.SIGKILL), victims


async def only_left(up, count):
    """So many slices are booked, and stay so for longer than it takes to notice a lock that is let go."""
    async with connected(up.running.nats_url) as bus, following(bus) as live:
        await live.until(
            lambda fleet_state: len(fleet_state.bookings()) == count, within_s=FREE_WITHIN_S, what=f"{count} to be left"
        )
        with pytest.raises(NotAnsweringError):
            await live.until(
                lambda fleet_state: len(fleet_state.bookings()) != count, within_s=3, what="another number"
            )


ON_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Becomes a command whose terminal is its standard input, as a login shell has one."""


async def test_a_key_of_the_terminal_reaches_the_command_once(shared):
    """Twice, and an interpreter would lose the work that one Ctrl-C was to interrupt."""
    far, near = pty.openpty()
    said = ""

    async def until(words, count):
        nonlocal said
        async with asyncio.timeout(DONE_WITHIN_S):
            while said.count(words) < count:
                said += (await asyncio.to_thread(os.read, far, 4096)).decode()

    shell = "trap 'echo heard' INT; echo trapping; while :; do sleep 0.1; done"
    command = (sys.executable, "-c", ON_TERMINAL, *RUN, "--", "sh", "-c", shell)
    run = psutil.Popen(command, env=shared.environment, stdin=near, stdout=near, stderr=near)
    try:
        await until("trapping", 1)
        for number in (1, 2):
            os.write(far, b"\x03")
            await until("heard", number)
        os.write(far, b"\x1c")
        assert await asyncio.to_thread(run.wait, DONE_WITHIN_S) == 128 + signal.SIGQUIT
        assert said.count("heard") == 2
        assert "\r\x1b[Ksluice run: " in said
    finally:
        if run.is_running():
            run.kill()
            run.wait(60)
        os.close(near)
        os.close(far)
    await free(shared)


async def test_what_a_command_leaves_behind_ends_with_it(shared, tmp_path):
    """Its slice is given to others."""
    pids = tmp_path / "pids"
    with running(shared, "sh", "-c", f"setsid sleep 1000 & echo $! > {pids}; exit 3") as run:
        assert run.wait(DONE_WITHIN_S) == 3
        assert not [pid for pid in written(pids) if runs(pid)]
    await free(shared)


async def test_a_signal_for_the_runner_is_one_for_the_command(shared):
    """A training run saves its state when it gets the signal."""
    shell = "trap 'echo one' USR1; trap 'echo int' INT; trap 'echo end; exit 9' TERM; echo; while :; do sleep 0.1; done"
    with running(shared, "sh", "-c", shell) as run:
        assert run.stdout.readline() == "\n"
        for number, said in ((signal.SIGUSR1, "one\n"), (signal.SIGINT, "int\n"), (signal.SIGTERM, "end\n")):
            run.send_signal(number)
            assert await asyncio.to_thread(run.stdout.readline) == said
        assert run.wait(DONE_WITHIN_S) == 9
    await free(shared)


async def test_a_job_that_is_stopped_keeps_its_slice_and_goes_on(shared, tmp_path):
    """Ctrl-Z and `fg`."""
    pids = tmp_path / "pids"
    with running(shared, "sh", "-c", f"echo $$ > {pids}; read line; exit 4", stdin=subprocess.PIPE) as run:
        (command,) = written(pids)
        os.killpg(run.pid, signal.SIGTSTP)
        for pid in (run.pid, command):
            wait_until(lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "all of it to stop")
        os.killpg(run.pid, signal.SIGCONT)
        run.stdin.write("\n")
        run.stdin.flush()
        assert run.wait(DONE_WITHIN_S) == 4
    await free(shared)


async def test_who_waits_is_told_why_and_may_give_up(shared, tmp_path):
    """Ctrl-C takes the ask back; so does the end of the time that was given."""
    pids = tmp_path / "pids"
    everything = ("--profile", "7g.40gb", "--gpus", "2", "--node", "gpu-2")

    async def until_told(run):
        while "waits: " not in (line := await asyncio.to_thread(run.stderr.readline)):
            assert line, "it ended"

    with running(shared, "sh", "-c", f"echo $$ > {pids}; exec sleep 999", options=everything[4:]) as holder:
        written(pids)
        late = await done(shared, *everything, "--wait-s", "3", "--", "true")
        assert late.returncode == 125
        assert "no slice within 3 s: waits: " in late.stderr
        assert "--wait-s waits longer" in late.stderr
        with running(shared, "true", options=everything) as second:
            await until_told(second)
            second.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(second.wait, DONE_WITHIN_S) == 130
        with running(shared, "true", options=everything) as third:
            await until_told(third)
            third.kill()  # its ask ends with its lock
        holder.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(holder.wait, DONE_WITHIN_S) == 143
    await free(shared, tidy=False)


NO_SUCH_COMMAND = r"sluice run: no-such-command: there is no such command\n"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--profile", "1g.5gb", "--", "no-such-command"), 127, NO_SUCH_COMMAND),
        (("--gpus", "99", "--", "true"), 125, r"(.*\n)?sluice run: refused: --gpus = '99': .*\n"),
    ],
    ids=["before-asking", "by-the-system"],
)
def test_a_run_that_cannot_be_ends_with_a_sentence_in_options(shared, words, code, sentence):
    """With the shell's exit code, and nothing on its output; a user of `--gpus` knows no annotation."""
    done = shared.sluice("run", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert re.fullmatch(sentence, done.stderr)


async def test_a_drain_ends_the_command(shared, tmp_path):
    """Its slice is revoked: going on would use another pod's."""
    pids = tmp_path / "pids"
    with running(shared, "sh", "-c", f"echo $$ > {pids}; exec sleep 1000", options=("--node", "gpu-2")) as run:
        (command,) = written(pids)
        await asyncio.to_thread(shared.done, "drain", "gpu-2", "--yes")
        assert await asyncio.to_thread(run.wait, DONE_WITHIN_S) == 143
        assert not runs(command)
        assert "the slice is taken away" in run.stderr.read()
    await asyncio.to_thread(shared.done, "uncordon", "gpu-2")
    await free(shared)


async def test_where_nothing_runs_a_run_brings_its_own_system_and_the_last_one_takes_it_away(up):
    """On a machine without a GPU; the process that started it may be killed while another one uses it."""
    go = up.temporary / "go"
    last = f"echo; while [ ! -e {go} ]; do sleep 0.05; done; exit 5"
    with running(up, "sh", "-c", "env | grep -E 'NVIDIA|CUDA'; echo $$; exec sleep 999") as first:
        told = [await asyncio.to_thread(first.stdout.readline) for _ in range(4)]
        assert any(line.startswith("CUDA_VISIBLE_DEVICES=MIG-") for line in told), first.stderr.read()
        (pointer,) = (up.runtime / "sluice").glob("*.json")
        system = psutil.Process(msgspec.json.decode(pointer.read_bytes(), type=RunningSystem).pid)
        everything = [psutil.Process(int(told[-1])), system, *system.children(recursive=True)]
        with running(up, "sh", "-c", last) as second:
            assert await asyncio.to_thread(second.stdout.readline) == "\n"
            first.kill()
            assert "no `sluice up` is running: starting one for this run, on simulated GPUs" in first.stderr.read()
            await asyncio.to_thread(up.done, "gpus")
            go.touch()
            assert await asyncio.to_thread(second.wait, DONE_WITHIN_S) == 5
            assert "starting one" not in second.stderr.read()
    assert not (await asyncio.to_thread(psutil.wait_procs, everything, 20))[1]
    go.unlink()
    assert not list(up.temporary.iterdir())
    assert not list(up.runtime.iterdir())


def test_what_this_machine_can_never_give_ends_at_once_with_what_comes_nearest(shared):
    """A mistyped profile would wait for an hour, for a node that never comes."""
    with running(shared, "true", options=("--profile", "4g.24gb", "--wait-s", "3600")) as run:
        _, said = run.communicate(timeout=DONE_WITHIN_S)
    assert run.returncode == 125
    assert said.rstrip().endswith("no GPU here has 4g.24gb. Closest: 4g.20gb (A100-40GB). A30-24GB has it")
    assert not list(shared.pods_dir.glob("run-*"))
