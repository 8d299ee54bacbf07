"""
GPUs whose driver does not come back from a call: nobody knows then how they are, so they count as lost.

A driver that hangs says nothing and refuses nothing, and whatever else is to be done on its GPU waits behind the call.
"""

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.instructions import OwnInstruction
from sluice_node_agent.core.state.in_flight import InFlight


class HungDrivers:
    """Since when each GPU has been busy with one call."""

    def __init__(self, in_flight: InFlight, config: AgentConfig) -> None:
        """Nothing is out yet."""
        self._in_flight = in_flight
        self._patience_s = config.driver_patience_s
        self._since: dict[GpuUuid, tuple[int, float]] = {}
        """Of each GPU that something is out for: its token, and when that was seen first."""

    def look(self, now: float) -> dict[GpuUuid, str]:
        """The GPUs that have been busy with one call for too long: why they count as lost."""
        out = self._in_flight.out_on_gpus()
        self._since = {gpu: self._seen_since(gpu, call, now) for gpu, call in out.items()}
        late = (gpu for gpu, (_, since) in self._since.items() if now - since >= self._patience_s)
        return {gpu: f"{gpu}: its driver does not return from {type(out[gpu]).__name__}" for gpu in late}

    def _seen_since(self, gpu: GpuUuid, call: OwnInstruction, now: float) -> tuple[int, float]:
        known = self._since.get(gpu)
        return known if known is not None and known[0] == call.token else (call.token, now)
