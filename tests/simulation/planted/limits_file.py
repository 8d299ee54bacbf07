"""Bugs about limits in a file, planted on purpose."""

from dataclasses import replace
from typing import Any

from simulation.judges.quotas import QuotaSaid
from simulation.plans.plan import Fault, Plan
from simulation.planted.bug import Bugs

from sluice_pod_watcher.core.limits_source import LimitsSource

LIMITS_BUGS = Bugs()


def _wiped(plan: Plan) -> Plan:
    """A file with limits, and a broker that loses everything in the middle."""
    said = (QuotaSaid(0.0, "lab", total=(2, None, None)), QuotaSaid(0.0, "den", total=(1, None, None)))
    faults = tuple(fault for fault in plan.faults if fault.target != "limits")
    wipe = Fault(20.0, "broker wipe")
    ordered = tuple(sorted((*faults, wipe), key=lambda fault: fault.at))
    return replace(plan, quotas=said, cordons=(), layouts={}, limits_file=True, faults=ordered)


@LIMITS_BUGS.plant("limits file published once", "limits", LimitsSource, "_keep", _wiped)
def _said_once(_original: Any, self: Any, address: Any, wanted: Any, standing: Any) -> None:
    """What the file says is said when it is read, and not looked after.
    Loses every limit, with the disk of a broker."""
    if wanted != standing and address not in self.__dict__.setdefault("said", {}):
        self.said[address] = wanted
        self._outbox.commit(address, wanted)
