"""Bugs about pods that may not be beside each other, planted on purpose."""

from typing import Any

from simulation.judges.pods_apart import with_apart
from simulation.plans.plan import Plan
from simulation.planted.bug import Bugs, PlantedBug, always

from sluice_allocator.core.placement.affinity.peers import Peers
from sluice_allocator.core.placement.affinity.term_counts import TermCount

APART_BUGS = Bugs()


def _least_where_a_pod_is(_original: Any, self: Any) -> int:
    """Hosts without any pod of the app are left out."""
    return min(self.levels, default=0)


def _apart(plan: Plan) -> Plan:
    return with_apart(plan, 1.0)


_LOSES = "a replica: it is pinned to a host where the scheduler cannot place it"
EMPTY_HOSTS_IGNORED = PlantedBug(
    "empty hosts ignored for spread", _LOSES, ("apart",), ((TermCount, "least", _least_where_a_pod_is),), _apart
)
APART_BUGS += [
    PlantedBug("booked pods not counted as peers", _LOSES, ("apart",), ((Peers, "book", always(None)),), _apart),
    PlantedBug("host ports ignored", _LOSES, ("apart",), ((Peers, "is_taken", always(False)),), _apart),
    EMPTY_HOSTS_IGNORED,
]
