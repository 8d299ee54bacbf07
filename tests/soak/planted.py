"""Defects planted into the agent before the driver forks it, one at a time: what the soak must find."""

from collections.abc import Callable, Sequence

from soak.life import name_of

from sluice_node_agent.core.events import FoundMpsHome
from sluice_node_agent.core.instructions import StopMps
from sluice_node_agent.core.journal_records import Record
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.shell.journal.journal import Journal
from sluice_node_agent.shell.tickets.tickets import Tickets
from sluice_node_agent.simulated.backend import SimulatedBackend


def _ticket_left() -> None:
    """A ticket is not removed with its slice: a container of the old pod could start."""
    Tickets.remove = lambda _self, _ticket: None  # type: ignore[method-assign]


def _instance_left() -> None:
    """The compute instance is destroyed and its GPU instance forgotten: it holds its slices for ever."""
    SimulatedBackend.destroy_gpu_instance = lambda *_: None  # type: ignore[method-assign]


def _daemon_left() -> None:
    """The MPS daemon outlives its last tenant."""
    MpsDaemons.stop = lambda *_: None  # type: ignore[method-assign]


def _mode_left() -> None:
    """The GPU stays in mode EXCLUSIVE_PROCESS when its home is gone: the next tenant gets one process."""
    was = SimulatedBackend.set_exclusive_process

    def only_on(self: SimulatedBackend, gpu: str, *, exclusive: bool) -> None:
        if exclusive:
            was(self, gpu, exclusive=True)  # type: ignore[arg-type]

    SimulatedBackend.set_exclusive_process = only_on  # type: ignore[method-assign,assignment]


def _intent_not_saved() -> None:
    """The device is touched before the journal knows of it: a crash in between leaks."""
    was = Journal.write

    def forgetful(self: Journal, records: Sequence[Record]) -> None:
        was(self, [record for record in records if not name_of(record).startswith("SliceRecord making intended")])

    Journal.write = forgetful  # type: ignore[method-assign]


def _cleans_up_at_start() -> None:
    """A new run ends the daemons that it finds, under live tenants."""
    was = MpsDaemons.found

    def clean(self: MpsDaemons) -> tuple[FoundMpsHome, ...]:
        for home in was(self):
            self.stop(StopMps(token=0, home=home.home, pid=home.pid, started_at=home.started_at))
        return ()

    MpsDaemons.found = clean  # type: ignore[method-assign]


PLANTED: dict[str, tuple[Callable[[], None], Sequence[str]]] = {
    "ticket-left": (_ticket_left, ("--parts", "kills", "--kinds", "exclusive")),
    "instance-left": (_instance_left, ("--parts", "kills", "--kinds", "exclusive")),
    "intent-not-saved": (_intent_not_saved, ("--parts", "kills", "--kinds", "exclusive")),
    "daemon-left": (_daemon_left, ("--parts", "kills", "--kinds", "share of a GPU")),
    "mode-left": (_mode_left, ("--parts", "kills", "--kinds", "share of a GPU")),
    "cleans-up-at-start": (_cleans_up_at_start, ("--parts", "restarts", "--restarts", "1")),
}
"""Each with the part of the soak that must find it."""
