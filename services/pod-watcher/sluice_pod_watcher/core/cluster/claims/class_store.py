"""The DeviceClasses of the cluster, and which of them are ours. Ours are `sluice.dev`, and those with our label:
NVIDIA's names belong to NVIDIA's driver where that is installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.contracts.dra.names import DEVICE_CLASS
from sluice.contracts.kube.names import LABEL_MANAGED, MANAGED
from sluice_pod_watcher.core.cluster.events import ClassGone, ClassSeen, ListingEnded, ListingStarted, Raw


@dataclass(slots=True)
class ClassStore:
    """The last known version of each class."""

    was_listed: bool = False
    _specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _labelled: dict[str, None] = field(default_factory=dict)
    _listed: set[str] | None = None

    def handle(self, event: ClassSeen | ClassGone | ListingStarted | ListingEnded) -> None:
        """Handle one event of the watch."""
        match event:
            case ClassSeen():
                self._seen(event.device_class)
            case ClassGone():
                self._drop(_name(event.device_class))
            case ListingStarted():
                self._listed = set()
            case ListingEnded():
                listed, self._listed = self._listed, None
                for name in [name for name in self._specs if listed is not None and name not in listed]:
                    self._drop(name)
                self.was_listed = True

    def exists(self, name: str) -> bool:
        """Whether there is such a class."""
        return name in self._specs

    def is_ours(self, name: str) -> bool:
        """Whether Sluice serves a class, also while its object is missing."""
        return name == DEVICE_CLASS or name in self._labelled

    @property
    def ours(self) -> Mapping[str, Mapping[str, Any]]:
        """The specs of our classes, by name."""
        return {name: spec for name, spec in self._specs.items() if self.is_ours(name)}

    def _seen(self, raw: Raw) -> None:
        name, spec = _name(raw), raw.get("spec")
        if self._listed is not None:
            self._listed.add(name)
        self._specs[name] = spec if isinstance(spec, dict) else {}
        labels = raw["metadata"].get("labels") or {}
        if labels.get(LABEL_MANAGED) == MANAGED:
            self._labelled[name] = None
        else:
            self._labelled.pop(name, None)

    def _drop(self, name: str) -> None:
        self._specs.pop(name, None)
        self._labelled.pop(name, None)


def _name(raw: Raw) -> str:
    return str(raw["metadata"]["name"])
