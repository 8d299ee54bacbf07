"""Every reader of outside bytes, by name."""

from collections.abc import Mapping

from fuzz import targets_bus, targets_kube, targets_node, targets_people
from fuzz.checking import Target

TARGETS: Mapping[str, Target] = {
    each.name: each for module in (targets_bus, targets_people, targets_kube, targets_node) for each in module.TARGETS
}
