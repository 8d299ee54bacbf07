"""
The versions of the node's snapshot, and the NodeChanged for each.

The generation rises with every change that a pull would show, and never goes back: blocks of it are reserved in the
journal, and an unreserved one is not published.
"""

from collections.abc import Sequence

from sluice.contracts.ids import NodeName, RunId
from sluice.contracts.messages import GpuCounts, GpuReport, Mode, NodeChanged, NodeSnapshot, SliceReport
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import AgentStarted

_WARNINGS_MAX = 8
"""The most warnings in a snapshot: every pull carries them."""


class SnapshotVersions:
    """The snapshot of one node and its generation."""

    def __init__(self, node: NodeName, run: RunId, config: AgentConfig) -> None:
        """Start with nothing to publish."""
        self._node = node
        self._run = run
        self.config = config
        self._boot_id = ""
        self._endpoint = self._certificate = ""
        self._driver_version = ""
        self._toolkit_version = ""
        self._version = ""
        self._modes: tuple[Mode, ...] = ("exclusive",)
        self._time_quota = False
        self._warnings: tuple[str, ...] = ()
        self.hands_over = False
        """Whether the kubelet hands devices over by ResourceClaim."""
        self.why_not = ""
        """Why not, although it should; empty when nothing is wrong."""
        self._generation = 0
        self._asked_upto = 0
        self._reserved_upto = 0
        self.snapshot: NodeSnapshot | None = None

    def start(self, event: AgentStarted, generation: int) -> None:
        """A new run: no generation up to `generation` may be used again."""
        self._boot_id = event.boot_id
        self._endpoint, self._certificate = event.endpoint, event.certificate
        self._driver_version = event.driver_version
        self._toolkit_version = event.toolkit_version
        self._version = event.version
        self._modes, self._time_quota = event.modes, event.time_quota
        if event.journal_problem:
            self._warnings = (f"rebuilt from devices and ledger: {event.journal_problem}",)
        left_out = (f"a GPU cannot read its UUID, so it gets no new slices: {why}" for why in event.nameless.values())
        self._warnings = (*self._warnings, *left_out)
        if event.has_pods and event.why_unseen:
            why = event.why_unseen
            unseen = f"slices of pods cannot be destroyed, because their processes cannot be checked: {why}"
            self._warnings = (*self._warnings, unseen)
        self._generation = self._asked_upto = self._reserved_upto = generation

    def warn(self, sentences: Sequence[str]) -> None:
        """Warnings of this run, for operators; only the first few are kept."""
        more = len(sentences) - _WARNINGS_MAX
        rest = (f"and {more} more",) if more > 0 else ()
        self._warnings = (*self._warnings, *sentences[:_WARNINGS_MAX], *rest)

    def must_reserve(self) -> bool:
        """Whether the reserved generations run out."""
        return self._asked_upto - self._generation < self.config.generation_block // 2

    def reserve(self) -> int:
        """The highest generation to save in the journal."""
        self._asked_upto = self._generation + self.config.generation_block
        return self._asked_upto

    def reserved(self, upto: int) -> None:
        """The journal has saved it."""
        self._reserved_upto = max(self._reserved_upto, upto)

    def tells(
        self, gpus: tuple[GpuReport, ...], slices: tuple[SliceReport, ...], doubtful_tickets: tuple[str, ...]
    ) -> bool:
        """Whether the snapshot already shows exactly this."""
        told = self.snapshot
        if told is None or told.kubelet_hands_over != self.hands_over or told.warnings != self._all_warnings():
            return False
        return (told.gpus, told.slices, told.doubtful_tickets) == (gpus, slices, doubtful_tickets)

    def update(
        self, gpus: tuple[GpuReport, ...], slices: tuple[SliceReport, ...], doubtful_tickets: tuple[str, ...] = ()
    ) -> NodeChanged | None:
        """Apply the current state. Returns a NodeChanged when a pull would show a difference."""
        if self.tells(gpus, slices, doubtful_tickets):
            return None
        if self._generation >= self._reserved_upto:
            return None  # published when the journal holds the next block
        self._generation += 1
        self.snapshot = NodeSnapshot(
            node=self._node,
            boot_id=self._boot_id,
            agent_run=self._run,
            generation=self._generation,
            driver_version=self._driver_version,
            gpus=gpus,
            slices=slices,
            modes=self._modes,
            time_quota=self._time_quota,
            toolkit_version=self._toolkit_version,
            warnings=self._all_warnings(),
            kubelet_hands_over=self.hands_over,
            doubtful_tickets=doubtful_tickets,
        )
        return NodeChanged(
            node=self._node,
            endpoint=self._endpoint,
            boot_id=self._boot_id,
            agent_run=self._run,
            generation=self._generation,
            gpus=tuple(_counts(gpu) for gpu in gpus),
            version=self._version,
            certificate=self._certificate,
        )

    def _all_warnings(self) -> tuple[str, ...]:
        why = (f"the kubelet cannot hand devices over: {self.why_not}",) if self.why_not else ()
        return (*self._warnings, *why)


def _counts(gpu: GpuReport) -> GpuCounts:
    return GpuCounts(
        uuid=gpu.uuid,
        model=gpu.model,
        instances=len(gpu.instances),
        creatable=gpu.creatable,
        creatable_total=sum(gpu.creatable.values()),
    )
