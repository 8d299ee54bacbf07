"""What makes a GPU unhealthy, and how that is noticed."""

import asyncio
import threading

import pynvml
import pytest

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.mig.catalog import catalog
from sluice_node_agent.core.events import DeviceErrorKind, GpuTroubled
from sluice_node_agent.device.gpu_health import APPLICATION_XIDS, HealthFacts, XidHistory, is_critical, why_unhealthy
from sluice_node_agent.device.nvml.errors import known_or, meaning, no_backend, older, told
from sluice_node_agent.device.nvml.mig import built_name, profile_name
from sluice_node_agent.device.port import DeviceError, GpuLostError, InUseError, NotSupportedError, RebootedError
from sluice_node_agent.shell.nodes.node_backend import WatchTimes
from sluice_node_agent.shell.runner import usage_poller as xid_watch
from sluice_node_agent.shell.runner.usage_poller import watch_xids

GPU = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("told_name", "name"), [("MIG 1g.5gb+me", "1g.5gb+me"), ("3g.20gb", "3g.20gb"), ("", "1g.5gb")]
)
def test_the_drivers_own_name_is_taken_without_its_prefix(told_name, name):
    """Names that begin with `MIG ` would match no request."""
    assert profile_name(told_name, enum=0, compute_slices=1, memory_mib=4864, total_bytes=40960 * 1024**2) == name


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109, 94, 63, 69, 154])
def test_a_faulty_job_does_not_take_gpus_out_of_the_fleet(xid):
    """An application's own errors would walk through the fleet with the job that is tried again."""
    assert not is_critical(xid)


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 158, 171, 172, 999])
def test_an_error_that_needs_a_reset_stops_new_slices(xid):
    """Also an unknown one: tenants would land on a broken GPU."""
    assert is_critical(xid)
    assert f"Xid {xid}: " in why_unhealthy(HealthFacts(mig_now=True, mig_next=True), (xid,), GPU)


def test_no_xid_that_has_words_is_taken_for_harmless():
    """The texts are for reasons; a number in both tables would never be seen."""
    assert all(0 < xid < 200 for xid in APPLICATION_XIDS)
    with_words = {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158, 167, 171, 172}
    assert not APPLICATION_XIDS & with_words


def test_mig_mode_that_waits_for_a_reset_is_said_with_the_remedy():
    """Slices would be promised on a GPU that cannot make them."""
    why = why_unhealthy(HealthFacts(mig_now=False, mig_next=True), (), GPU)
    assert why.startswith("MIG mode is off and will be on after the next reset:")
    assert "nvidia-smi --gpu-reset" in why


@pytest.mark.parametrize(
    "why",
    [
        lambda gpu: why_unhealthy(HealthFacts(mig_now=True, mig_next=True), (79, 119), gpu),
        lambda gpu: why_unhealthy(HealthFacts(mig_now=False, mig_next=True), (), gpu),
        lambda gpu: why_unhealthy(HealthFacts(mig_now=True, mig_next=True, recovery=1), (), gpu),
        lambda gpu: why_unhealthy(HealthFacts(mig_now=True, mig_next=True, recovery=4), (), gpu),
        lambda gpu: why_unhealthy(HealthFacts(mig_now=True, mig_next=True, uncorrected=1), (), gpu),
        lambda gpu: str(meaning(f"{gpu}: reading it", 15, gpu)),
        lambda gpu: str(meaning(f"{gpu}: reading it", 16, gpu)),
    ],
    ids=["xids", "mig", "asked", "drain", "ecc", "lost", "reset-required"],
)
def test_every_reset_that_is_advised_names_its_gpu_and_the_agent(why):
    """Without the GPU's name all GPUs are reset, under all tenants; beside the agent the reset is refused."""
    said = why(GPU)
    assert said.count("--gpu-reset") == 1
    assert f"nvidia-smi --gpu-reset -i {GPU}," in said
    assert said.index("stop the node's agent (remove its label sluice.dev/agent)") < said.index("--gpu-reset")
    assert said.endswith(("or reboot the node", "or reboot the node (NVML error 15)", "(NVML error 16)"))
    assert why(GPU) == said, "a sentence that changed would be news each time"


def test_no_reset_is_advised_where_the_driver_asks_for_something_else():
    """A person would reset a GPU in vain, and end what runs on it."""
    for action in (2, 3, 5, 6, 7):
        for mig_next, xids in ((True, ()), (False, (79,))):
            facts = HealthFacts(mig_now=True, mig_next=mig_next, recovery=action)
            assert "--gpu-reset" not in why_unhealthy(facts, xids, GPU)


def test_no_reset_is_advised_of_a_gpu_that_is_not_known_by_its_uuid():
    """Its place in the driver's list may be another GPU's when the command is typed."""
    for code in (15, 16):
        assert str(meaning("GPU 3", code)).endswith(f"; reboot the node (NVML error {code})")


def test_what_the_driver_asks_for_is_believed():
    """It survives the agent's restart; the Xids that it remembers do not."""
    fine = HealthFacts(mig_now=False, mig_next=False, recovery=0, uncorrected=3)
    assert why_unhealthy(fine, (), GPU) == ""
    for action in range(1, 9):
        assert why_unhealthy(HealthFacts(mig_now=False, mig_next=False, recovery=action), (), GPU) != ""


def test_xids_are_kept_until_the_gpu_was_recovered():
    """A GPU would be used again unreset, or never again after its reset."""
    xids = XidHistory()
    xids.add(GPU, 48)
    xids.add(GPU, 62)
    xids.add(GPU, 48)
    assert xids.of(GPU) == (48, 62)
    for action in (None, 0):  # nothing was asked for yet: no proof of a reset
        xids.recovery(GPU, action)
        assert xids.of(GPU) == (48, 62)
    xids.recovery(GPU, 1)
    assert xids.of(GPU) == (48, 62)
    xids.recovery(GPU, 0)
    assert xids.of(GPU) == ()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, DeviceErrorKind.UNKNOWN),
        (2, DeviceErrorKind.INVALID_ARGUMENT),
        (3, DeviceErrorKind.NOT_SUPPORTED),
        (4, DeviceErrorKind.NO_PERMISSION),
        (6, DeviceErrorKind.NOT_FOUND),
        (10, DeviceErrorKind.UNKNOWN),
        (13, DeviceErrorKind.DRIVER_MISMATCH),
        (15, DeviceErrorKind.GPU_LOST),
        (16, DeviceErrorKind.GPU_LOST),
        (18, DeviceErrorKind.DRIVER_MISMATCH),
        (19, DeviceErrorKind.IN_USE),
        (23, DeviceErrorKind.INSUFFICIENT_RESOURCES),
        (25, DeviceErrorKind.DRIVER_MISMATCH),
        (28, DeviceErrorKind.GPU_LOST),
        (999, DeviceErrorKind.UNKNOWN),
        (4711, DeviceErrorKind.UNKNOWN),
    ],
)
def test_every_code_of_the_driver_becomes_an_error_of_ours(code, kind):
    """The core decides by the kind: a wrong one retries for ever, or gives up what could be had."""
    error = meaning("GPU-1: doing", code)
    assert error.kind is kind
    assert str(error).startswith("GPU-1: doing: ")
    assert str(error).endswith(f"(NVML error {code})")


def test_no_error_of_pynvml_gets_out():
    """It cannot be hashed, and comparing it raises: code that logs or collects errors would crash."""

    def fail(code):
        raise pynvml.NVMLError(code)

    with pytest.raises(InUseError) as caught, told("it"):
        fail(19)
    assert caught.value.__cause__ is None
    assert isinstance(hash(caught.value), int)
    with pytest.raises(GpuLostError, match=f"-i {GPU}"), told("it", GPU):
        known_or(0, fail, 15)  # a GPU that is lost is no missing fact
    assert known_or(7, fail, 3) == 7
    assert older(lambda: fail(13), lambda: "old") == "old"

    def no_text():
        return b"\xfc".decode()

    assert known_or("", no_text) == ""
    with pytest.raises(DeviceError, match="it: the driver's answer is not valid text") as said, told("it"):
        no_text()
    assert said.value.__cause__ is None
    with pytest.raises(DeviceError), told("it"):
        older(lambda: fail(19), lambda: "old")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (12, "install the NVIDIA driver"),
        (9, "modprobe nvidia"),
        (4, "run the agent as root"),
        (18, "reboot"),
        (999, "nvidia-smi"),
    ],
)
def test_a_node_without_usable_driver_says_what_to_do(code, words):
    assert words in str(no_backend(code))
    assert "\n" not in str(no_backend(code))


BROKEN = GpuUuid("GPU-1")
PATIENCE_S = 10.0


class Driver:
    """Answers as the test says, then waits until the test releases it."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.waits = threading.Event()
        self.let_go = threading.Event()
        self.under_way = 0

    def troubled(self, timeout_s):
        self.under_way += 1
        try:
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            self.waits.set()
            assert self.let_go.wait(PATIENCE_S)
            return ()
        finally:
            self.under_way -= 1


def _watch(driver, heard):
    async def offer(event):
        heard.append(event)

    return asyncio.create_task(watch_xids(driver, WatchTimes(1.0, 0.0), offer, node=NodeName("n1")))


async def test_what_the_driver_tells_reaches_the_core(monkeypatch):
    """A BROKEN that broke is read at once, also after the driver had refused to be listened to."""
    monkeypatch.setattr(xid_watch, "_DEAF_S", 0.01)
    driver, heard = Driver(NotSupportedError("no events"), (BROKEN, GpuUuid("GPU-2")), (), (BROKEN,)), []
    task = _watch(driver, heard)
    assert await asyncio.to_thread(driver.waits.wait, PATIENCE_S)
    assert heard == [GpuTroubled(BROKEN), GpuTroubled(GpuUuid("GPU-2")), GpuTroubled(BROKEN)]
    driver.let_go.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_driver_is_not_closed_while_it_is_listened_to():
    """An agent that stops does not pull the library away under its own thread, which would crash it."""
    driver = Driver()
    task = _watch(driver, [])
    assert await asyncio.to_thread(driver.waits.wait, PATIENCE_S)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    driver.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE_S)
    assert driver.under_way == 0


async def test_a_reboot_noticed_here_begins_a_new_life():
    """The agent of a node that was rebooted does not go on with what it knew of the old boot."""
    with pytest.raises(RebootedError):
        await asyncio.wait_for(_watch(Driver(RebootedError("rebooted")), []), PATIENCE_S)


@pytest.mark.parametrize("model", catalog(), ids=lambda model: model.key)
def test_profiles_are_found_by_the_same_name_on_old_drivers(model):
    """A driver that does not report the names of profiles: a grant of `3g.20gb` must still find it."""
    for profile in model.profiles:
        size = {"compute_slices": profile.compute_slices, "memory_mib": profile.memory_mib}
        assert built_name(enum=profile.nvml_enum, total_bytes=model.memory_mib * 1024**2, **size) == profile.name
