"""Bugs that took thousands of seeds to be found: only the plans that are kept in `kept/` show them."""

from typing import Any

from simulation.planting import Planted

from sluice_pod_watcher.core.cluster.requests import Requests


def _closed_once_and_for_all(original: Any) -> Any:
    def heard(self: Any, uid: Any, word: Any, now: float) -> Any:
        """Of a request that was closed nothing more has to be said, whatever the bus says."""
        record = self.records.get(uid)
        return None if record is not None and record.closed else original(self, uid, word, now)

    return heard


RARE_BUGS = (
    Planted(
        "closed once and for all",
        "a request's end: it stays on the bus for ever",
        ("I3",),
        ((Requests, "heard", _closed_once_and_for_all),),
    ),
)
