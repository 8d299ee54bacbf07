"""
Detect GPUs whose driver does not return from a call: their state is unknown, so they count as lost.

A hung driver reports no error, and all other work on its GPU waits behind the call.
"""

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.instructions import OwnInstruction
from sluice_node_agent.core.state.in_flight import InFlight


class HungDrivers:
    """The start of each GPU's current call."""

    def __init__(self, in_flight: InFlight, config: AgentConfig) -> None:
        """Start with nothing in flight."""
        self._in_flight = in_flight
        self._patience_s = config.driver_patience_s
        self._since: dict[GpuUuid, tuple[int, float]] = {}
        """Per busy GPU: the token of its call, and when that was first seen."""

    def look(self, now: float) -> dict[GpuUuid, str]:
        """The GPUs whose current call takes too long, with the reason to count them as lost."""
        out = self._in_flight.out_on_gpus()
        self._since = {gpu: self._seen_since(gpu, call, now) for gpu, call in out.items()}
        late = (gpu for gpu, (_, since) in self._since.items() if now - since >= self._patience_s)
        return {gpu: f"{gpu}: its driver does not return from {type(out[gpu]).__name__}" for gpu in late}

    def _seen_since(self, gpu: GpuUuid, call: OwnInstruction, now: float) -> tuple[int, float]:
        known = self._since.get(gpu)
        return known if known is not None and known[0] == call.token else (call.token, now)
