"""Names that a user may type: pods, nodes, GPUs, namespaces, profiles, quarantined slices, words of a filter."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from sluice.contracts.messages import QuotaSet, SliceQuarantined
from sluice_console.core.fleet.filters import Subject, states_of
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.pods import pods_document

Named = Literal["pods", "nodes", "gpus", "namespaces", "profiles", "quarantined"]
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,253}")
"""What a shell does not interpret: names come from users, and a completed one is run."""


def names_of(named: Named, fleet_state: FleetState, *, node: str = "") -> list[str]:
    """All names of a kind, in order; GPUs of one node if it is given."""
    return sorted({name for name in _names(named, fleet_state, node) if _PLAIN.fullmatch(name)})


def _names(named: Named, fleet_state: FleetState, node: str) -> Iterable[str]:
    match named:
        case "pods":
            return (f"{pod.namespace}/{pod.name}" for pod in pods_document(fleet_state).pods if pod.name)
        case "nodes":
            return (*fleet_state.inventories(), *fleet_state.news())
        case "namespaces":
            quotas = (key[0] for key, _ in fleet_state.of("quota", QuotaSet))
            return (*quotas, *(pod.namespace for pod in pods_document(fleet_state).pods if pod.namespace))
        case "quarantined":
            return (key[-1] for key, _ in fleet_state.of("slice", SliceQuarantined))
    found = fleet_state.inventories().items()
    gpus = [gpu for name, each in found for gpu in each.snapshot.gpus if node in {"", name}]
    if named == "gpus":
        return (gpu.uuid for gpu in gpus)
    return (name for gpu in gpus for name in (*(each.name for each in gpu.profiles), *gpu.creatable))


def filter_words(subject: Subject, fleet_state: FleetState) -> Iterator[tuple[str, str]]:
    """Key and value of every filter that says something of the subject."""
    keys: dict[str, Sequence[str]] = {
        "team": names_of("namespaces", fleet_state),
        "node": names_of("nodes", fleet_state),
        "is": states_of(subject),
    }
    if subject in {"gpus", "nodes"}:
        keys["fits"] = names_of("profiles", fleet_state)
    return ((key, value) for key, values in keys.items() for value in values)
