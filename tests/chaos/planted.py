"""Services with a known bug each, which the judges must find: `python tests/chaos/planted.py DEFECT`."""

import runpy
import sys
from collections.abc import Callable

from sluice.contracts.bus.events import Entry
from sluice.runtime.lease import Lease
from sluice_console.core.process_plan import SERVICES
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import HardwareFile


def _cleans_up_at_start() -> None:
    """A restarted agent destroys the instances that it finds, under living pods."""
    was = SimulatedBackend.__init__

    def clean(self: SimulatedBackend, file: HardwareFile, **more: int) -> None:
        with file.changing() as hardware:
            for gpu in hardware.gpus:
                gpu.instances = []
        was(self, file, **more)  # type: ignore[arg-type]

    SimulatedBackend.__init__ = clean  # type: ignore[method-assign,assignment]


def _instance_left() -> None:
    """The driver says that it has destroyed instances, and has not."""

    def nothing(_self: SimulatedBackend, *_: object) -> None:
        return

    SimulatedBackend.destroy_compute_instance = nothing  # type: ignore[method-assign,assignment]
    SimulatedBackend.destroy_gpu_instance = nothing  # type: ignore[method-assign,assignment]


def _standby_ends() -> None:
    """The allocator that stands by ends in every run; the other one works, so no pod is the worse for it."""
    was = Lease._may_take

    def end(self: Lease, found: Entry) -> bool:
        if not was(self, found):
            raise RuntimeError("planted: another one works")
        return True

    Lease._may_take = end  # type: ignore[method-assign]


PLANTED: dict[str, tuple[str, Callable[[], None]]] = {
    "cleans up at start": ("node-agent", _cleans_up_at_start),
    "instance left": ("node-agent", _instance_left),
    "standby ends": ("allocator", _standby_ends),
}
"""By name: the service that has it, and what makes it have it."""


def command(service: str, defect: str) -> tuple[str, ...]:
    """What to run for a service, with the defect if it is one of that service's."""
    if defect and PLANTED[defect][0] == service:
        return (sys.executable, __file__, defect)
    return (sys.executable, "-m", SERVICES[service])


if __name__ == "__main__":
    owner, plant = PLANTED[sys.argv.pop()]
    plant()
    runpy.run_module(SERVICES[owner], run_name="__main__", alter_sys=True)
