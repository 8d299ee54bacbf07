"""MPS homes on simulated hardware: their processes are on the device while they live, and not longer."""

import os
import signal
import time

import pytest
from factories.gpus.mps import H1, H2, LIMITS, TENANT, Place, refusal_of, stop_order
from factories.waiting import wait_until
from nvml.backends import fleet

from sluice_node_agent.core.instructions import StartMps
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import HardwareFile
from sluice_node_agent.simulated.mps_program import HARDWARE_VARIABLE


@pytest.fixture
def hardware(place: Place) -> HardwareFile:
    """A node with a GPU in MIG mode that has one instance, and one without MIG."""
    file = HardwareFile(place.path / "hardware.json")
    file.make(fleet('{model="a100-40gb"}, {model="a100-40gb", mig=false}'))
    place.environment[HARDWARE_VARIABLE] = str(place.path / "hardware.json")
    place.reborn()
    return file


def test_a_home_inside_a_mig_instance_is_on_its_device(place: Place, hardware: HardwareFile) -> None:
    """What runs in an instance must keep it from being destroyed, and must vanish when the home does."""
    backend = SimulatedBackend(hardware)
    gpu = backend.read()[0].uuid
    gi_id = backend.create_gpu_instance(gpu, 19, 0, 1)
    device = backend.create_compute_instance(gpu, gi_id)
    order = StartMps(1, H1, gpu, device, "team-a", TENANT, LIMITS)
    pid, _ = place.daemons.start(order)
    client = place.client(options=("--owner", "pod-1"))
    client.hear()
    holders = wait_until(lambda: len(found := backend.processes(gpu, device)) == 2 and found, "both are on the device")
    assert sorted((holder.kind, holder.owner) for holder in holders) == [("compute", "pod-1"), ("mps", "")]
    assert next(holder.pid for holder in holders if holder.kind == "mps") != pid
    os.kill(client.pid, signal.SIGKILL)
    wait_until(lambda: len(backend.processes(gpu, device)) == 1, "the client is off the device")
    for process in place.left():
        process.kill()
    wait_until(lambda: not backend.processes(gpu, device), "a killed server is off the device")
    place.daemons.start(order)
    wait_until(lambda: backend.processes(gpu, device), "the new server is on the device")
    place.daemons.stop(stop_order())
    assert backend.processes(gpu, device) == ()
    backend.destroy_compute_instance(gpu, gi_id, device)


def test_no_home_on_a_device_that_is_not_there(place: Place, hardware: HardwareFile) -> None:
    """A MIG UUID of before a reboot names nothing."""
    gpu = hardware.read().gpus[0].uuid
    said = refusal_of(lambda: place.daemons.start(StartMps(1, H1, gpu, "MIG-gone", "team-a", TENANT, LIMITS)))
    assert "Invalid CUDA_VISIBLE_DEVICES" in said


def test_homes_that_come_and_go_at_once_keep_the_hardware_whole(place: Place, hardware: HardwareFile) -> None:
    """Daemons and the agent write the same file: a lost update hides a process."""
    backend = SimulatedBackend(hardware)
    gpu = backend.read()[1].uuid
    deadline = time.monotonic() + 60
    for home in (H1, H2):
        place.daemons.start(StartMps(1, home, gpu, gpu, "team-a", TENANT, LIMITS))
    clients = [place.client(home) for home in (H1, H2) for _ in range(4)]
    for client in clients:
        client.hear()
    wait_until(lambda: len(backend.processes(gpu, gpu)) == 10, "all are on the device")
    for home in (H1, H2):
        place.daemons.stop(stop_order(home))
    wait_until(lambda: not backend.processes(gpu, gpu), "all are off the device")
    assert time.monotonic() < deadline
