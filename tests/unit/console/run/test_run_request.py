"""`sluice run` before the request: the pod, the command's environment, and invalid options."""

import asyncio
import fcntl
import os
import stat
from contextlib import nullcontext

import pytest
from factories.console import pod_of
from msgspec.structs import replace

from sluice.contracts.bus.events import Entry, Observed, ReadingStarted, Stream
from sluice.contracts.ids import Incarnation, OperationId
from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.messages import ContainerDevices, EvictionOrdered, Refused
from sluice.contracts.messages import Held as Remembered
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import RequestLimits
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.run_request import (
    RunRequest,
    environment_on,
    manifest_of,
    may_start,
    standing_text,
    why_not,
    why_refused,
)
from sluice_console.shell.live.running_systems import RunningSystem, announce
from sluice_console.shell.run import target_system
from sluice_console.shell.run.errors import RunError
from sluice_console.shell.run.follow_request import HeldSlice
from sluice_console.shell.run.progress import RunProgress
from sluice_console.shell.run.run import RunOptions, check

GIVEN = ContainerDevices(container="command", visible_devices="MIG-1")


def manifest(environ=None, **sizes):
    return manifest_of(RunRequest(**sizes), namespace="ns", name="n", uid=7, node="", environ=environ or {})


def asked(environ=None, **sizes):
    """The claim that a manifest of these options makes, as the pod-watcher reads it."""
    (pod,) = read_manifests("a.yaml", manifest(environ, **sizes), limits=ManifestLimits(), asks=RequestLimits(8))
    assert pod.refusal is None, pod.refusal
    (claim,) = pod.ask.claims
    return claim


def test_without_any_size_it_is_one_whole_gpu():
    """And not a pod that asks for nothing, whose command would see no GPU at all."""
    claim = asked()
    assert (claim.gpus, claim.profile, claim.memory_mib, claim.modes) == (1, None, None, ("exclusive",))


def test_sizes_are_those_of_manifests_and_a_share_is_of_the_users_own():
    """An MPS server serves one user: another's share would wait for ever."""
    assert asked(profile="1g.5gb", gpus="2").gpus == 2
    assert (asked(memory="8Gi").memory_mib, asked(sm="20").sm_percentage) == (8192, 20)
    share = asked(mode="fractional", sm="20", memory="2Gi")
    assert (share.modes, share.sm_partition, share.uid) == (("fractional",), 20, 7)


def test_a_command_starts_only_on_what_the_source_of_its_pod_remembers(make):
    """It would run on a slice not known to be in use after the pod-watcher and the broker have both died."""
    asked, bound, granted = make.asked(), make.bound(), make.grant()

    def starts(held):
        fleet_state = make.fleet_state(request=replace(asked, held=held), binding=bound, ledger=granted)
        (pod,) = pods_document(fleet_state).pods
        assert pod.state == "bound"
        return may_start(fleet_state, pod)

    assert starts(Remembered(node=bound.node, allocation=bound.allocation))
    assert not starts(None)
    assert not starts(Remembered(node=bound.node, allocation="another"))
    (pod,) = pods_document(make.fleet_state(request=asked, ledger=granted)).pods
    assert not may_start(make.fleet_state(request=replace(asked, held=None)), pod)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"profile": "9g.nonsense"}, "--profile = '9g.nonsense': "),
        ({"sm": "101"}, "--sm = '101': "),
        ({"sm": "101", "mode": "fractional"}, "--sm = '101': "),
        ({"memory": "much"}, "--memory = 'much': "),
        ({"memory": "60Gi", "profile": "1g.5gb"}, "--memory = '60Gi': contradicts --profile = '1g.5gb'"),
        ({"gpus": "0"}, "--gpus = '0': "),
        ({"mode": "mps"}, "(allowed: --memory)"),
        ({"mode": "some", "memory": "1Gi"}, "--mode = 'some': "),
    ],
)
def test_what_cannot_be_asked_for_names_the_option(sizes, words):
    why = why_refused("the ask", manifest(**sizes))
    assert words in why
    assert "sluice.dev" not in why


@pytest.mark.parametrize("field", ["sluice.dev/gpus", "gpus"])
def test_what_the_system_refuses_names_the_option_too(make, field):
    """How many GPUs a pod may have is known to the pod-watcher, or to the allocator."""
    why = {"reason": RefusalReason.TOO_LARGE, "message": "more than any node"}
    refusal = Refusal(**why, field=field, value="99", allowed="1 to 8")
    refused = Refused(request=make.request, request_revision=1, refusal=refusal)
    (pod,) = pods_document(make.fleet_state(request=make.asked(), binding=refused)).pods
    assert why_not(pod) == "refused: --gpus = '99': more than any node (allowed: 1 to 8)"


def test_the_callers_say_on_the_driver_is_asked_for_as_a_pods_is():
    """A renderer would read that it may compute, whatever it was started with."""
    environ = {"NVIDIA_DRIVER_CAPABILITIES": "compute,graphics", "HOME": "/h"}
    assert asked(environ).driver_capabilities == "compute,graphics"
    assert "/h" not in manifest(environ)
    wrong = manifest({"NVIDIA_DRIVER_CAPABILITIES": "grafics"})
    assert "did you mean graphics?" in why_refused("the ask", wrong)


def test_the_callers_own_devices_are_not_the_commands():
    """A variable that was left over would show it another tenant's GPU, or another daemon."""
    others = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_PIPE_DIRECTORY": "/mine", "NVIDIA_VISIBLE_DEVICES": "all"}
    before = {"HOME": "/h"} | others
    assert environment_on(GIVEN, before, request="r") == {
        "HOME": "/h",
        "NVIDIA_VISIBLE_DEVICES": "MIG-1",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "CUDA_VISIBLE_DEVICES": "MIG-1",
        "SLUICE_REQUEST": "r",
    }
    share = replace(
        GIVEN, mps_pipe_directory="/p", mps_log_directory="/l", active_thread_percentage=20, pinned_memory_limit="0=1M"
    )
    told = environment_on(share, before, request="r")
    assert (told["CUDA_MPS_PIPE_DIRECTORY"], told["CUDA_MPS_LOG_DIRECTORY"]) == ("/p", "/l")
    assert (told["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], told["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]) == ("20", "0=1M")


def test_who_waits_reads_why():
    assert standing_text(None) == "the request is not read yet"
    assert standing_text(pod_of(state="waiting", message="waits: 4 x A100: full")) == "waits: 4 x A100: full"
    assert standing_text(pod_of(state="making", message="is being made on a")) == "is being made on a"
    # "has 1g.5gb on a" would be told twice, or be why there was no slice in time.
    assert standing_text(pod_of(state="bound", message="has 1g.5gb on a", node="a")) == "its slice on a is ready"


@pytest.mark.parametrize(
    ("command", "ask", "code", "words"),
    [
        ("nowhere", {}, 127, "there is no such command"),
        ("program", {}, 126, "cannot be executed"),
        (f"{'a' * 300}/train", {}, 126, "it cannot be executed: File name too long"),
        ("true", {"sm": "101"}, 125, "--sm = '101': "),
    ],
)
def test_what_cannot_run_is_reported_before_any_question(tmp_path, command, ask, code, words):
    """Not after an hour in the queue; with the shell's exit codes, and never by a traceback."""
    (tmp_path / "program").write_text("x")
    (tmp_path / "program").chmod(stat.S_IRUSR)
    (tmp_path / "true").symlink_to("/bin/true")
    with pytest.raises(RunError, match=words) as told:
        check(RunOptions(command=(str(tmp_path / command),), ask=RunRequest(**ask)))
    assert told.value.exit_code == code


def test_a_named_system_needs_its_folder(tmp_path, monkeypatch):
    """The bus alone is no place to ask: each source has one writer."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(RunError, match="--pods"):
        target_system.named("nats://127.0.0.1:1", None, "")
    for nowhere in (tmp_path / "nowhere", tmp_path / ("a" * 300)):
        with pytest.raises(RunError, match="is no folder"):
            target_system.named("nats://127.0.0.1:1", nowhere, "")
    assert target_system.named("nats://127.0.0.1:1", tmp_path, "n").node == "n"
    here = {"pid": os.getpid(), "nats_url": "nats://127.0.0.1:1", "data_dir": str(tmp_path), "pods_dir": str(tmp_path)}
    announce(RunningSystem(**here, inventory_grpc="", nodes=("gpu-1",), started_at="", simulated=False))
    found = target_system.named("nats://127.0.0.1:1", None, "")
    assert (found.pods_dir, found.node) == (tmp_path, "gpu-1")


def test_waiting_is_one_line_on_a_terminal_and_a_line_per_change_elsewhere(capsys):
    """A log of a thousand equal lines hides the one that counts."""
    for on_terminal in (False, True):
        said = RunProgress(on_terminal=on_terminal)
        for words in ("waits: a", "waits: a", "waits: b"):
            said.progress(words)
        said.close()
    clear = "\r\x1b[K"
    expected = "sluice run: waits: a\nsluice run: waits: b\n"
    assert capsys.readouterr().err == expected + f"{clear}sluice run: waits: a{clear}sluice run: waits: b{clear}"
    quiet = RunProgress(on_terminal=False, quiet=True)
    quiet.progress("waits")
    quiet.line("has it")
    quiet.failure("no")
    assert capsys.readouterr().err == "sluice run: no\n"


async def test_a_slice_that_is_taken_away_is_heard_of_once_with_why(make):
    """A command that goes on would run on another tenant's slice."""
    warned = []
    held = HeldSlice(pod_of("r", containers=(GIVEN,), warnings=("old",)), warned.append)
    made_again = replace(GIVEN, visible_devices="MIG-2")
    bound = make.bound(request="r", revision=2, containers=(made_again,), warnings=("old", "the daemon died"))

    def hear(message):
        entry = Entry("sluice.binding.r", 1, OperationId("o"), message)
        held.hear(Observed(Stream.STATE, entry))

    held.hear(ReadingStarted(Stream.STATE, Incarnation("2")))
    for message in (bound, bound):
        hear(message)
    assert warned == [
        "the daemon died",
        "its slice was created again under another name; the running processes lost the device",
    ]
    hear(EvictionOrdered(request="r", cause="of another life of the bus", incarnation=Incarnation("1")))
    hear(EvictionOrdered(request="r", cause="drained", incarnation=Incarnation("2")))
    hear(make.withdrawn())
    async with asyncio.timeout(1):
        assert await held._taken == "it is evicted: drained"


@pytest.mark.parametrize(
    ("command", "environment", "refused"),
    [
        (b"python\0-m\0sluice_node_agent\0", b"A=1\0", True),
        (b"/usr/bin/sluice-node-agent\0", None, True),
        (b"python\0-m\0sluice_node_agent\0", b"SLUICE_NODE_AGENT_FLEET_FILE=/f\0", False),
        (b"less\0sluice_node_agent.log\0", b"", False),
    ],
)
def test_no_second_agent_hands_out_the_same_gpus(tmp_path, command, environment, refused):
    (tmp_path / "4711").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "4711" / "cmdline").write_bytes(command)
    if environment is not None:
        (tmp_path / "4711" / "environ").write_bytes(environment)
    why = r"process 4711\) hands out the GPUs of this machine already"
    with pytest.raises(RunError, match=why) if refused else nullcontext():
        target_system._check_nobody_hands_them_out(tmp_path)


def test_a_system_ends_with_its_last_user_and_takes_no_new_one(tmp_path):
    """A process started meanwhile would use a system that is gone in a moment."""
    file = tmp_path / "used"
    file.touch()
    assert not target_system.is_used(file)
    with file.open("rb") as user:
        fcntl.flock(user, fcntl.LOCK_SH)
        assert target_system.is_used(file)
    with file.open("rb") as system, file.open("rb") as late:
        fcntl.flock(system, fcntl.LOCK_EX)
        assert not target_system.is_used(file)
        assert not target_system._shared(late.fileno())
