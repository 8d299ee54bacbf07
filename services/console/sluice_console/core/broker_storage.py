"""
Describe what is wrong with the disk under a local broker, and decide when to restart the broker.

nats-server keeps its first write error as long as it runs, even when the disk has room again (tried on
2.15.1; `getWriteErr` in its server/monitor.go). So only a restart helps, and only once there is room.
"""

from dataclasses import dataclass
from pathlib import Path

from sluice.contracts.bus.store_sizes import MIB, ROOM_MIB

AGAIN_FIRST_S = 5.0
AGAIN_MAX_S = 300.0
"""Pause before another restart that does not help, doubled each time."""
WELL_AFTER_S = 60.0
"""A broker that stored for so long has recovered from the earlier error."""


def too_small(folder: Path, free_bytes: int) -> str:
    """Why a system cannot be started there, or empty."""
    if free_bytes >= ROOM_MIB * MIB:
        return ""
    return (
        f"the disk under {folder} has {free_bytes // MIB} MiB free, and Sluice needs {ROOM_MIB} MiB there: free some "
        "space, or name a folder on another disk (--data DIR; TMPDIR, where it is a temporary one)"
    )


def what_is_wrong(folder: Path | str, error: str, free_bytes: int) -> str:
    """Why a broker with this `error` cannot store; empty without an error."""
    if not error:
        return ""
    if free_bytes < ROOM_MIB * MIB:
        return (
            f"the disk under {folder} is full: {free_bytes // MIB} MiB free; the broker can't store, so nothing is "
            f"granted or given back; free some space ({ROOM_MIB} MiB are enough), and Sluice continues by itself"
        )
    return (
        f"the broker can't store under {folder}, where {free_bytes // MIB} MiB are free: {error}; it is started again"
    )


@dataclass(slots=True)
class RestartBackoff:
    """Decides when a broker that cannot store is restarted."""

    _pause_s: float = AGAIN_FIRST_S
    _not_before: float = 0.0
    _failed_at: float | None = None

    @property
    def has_recovered(self) -> bool:
        """Whether the broker stores, and did for WELL_AFTER_S since its last error."""
        return self._failed_at is None

    def another(self, error: str, free_bytes: int, now: float) -> bool:
        """Whether to restart now: it cannot store, there is room, and the last restart is long enough ago."""
        if not error:
            if self._failed_at is not None and now - self._failed_at > WELL_AFTER_S:
                self._pause_s, self._failed_at = AGAIN_FIRST_S, None
            return False
        self._failed_at = now
        if free_bytes < ROOM_MIB * MIB or now < self._not_before:
            return False
        self._not_before = now + self._pause_s
        self._pause_s = min(AGAIN_MAX_S, 2 * self._pause_s)
        return True
