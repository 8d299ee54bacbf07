"""How the cluster that manifests are meant for judges its pods: its admission rules, and labels of its namespaces."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contracts.admission import AdmissionConfig
from sluice.contracts.kube.names import DEFAULT_MODES, LABEL_DEFAULT_MODE, LABEL_IGNORE


@dataclass(frozen=True, slots=True)
class Namespace:
    """What a Namespace among the manifests says to Sluice, as the API server reads it (docs/admission.md)."""

    name: str
    is_ignored: bool = False
    default_mode: str = ""
    """Of containers that name none; empty leaves it to the rules."""


@dataclass(frozen=True, slots=True)
class ClusterAdmission:
    """Without a word of anybody: a cluster whose owner has set nothing."""

    config: AdmissionConfig = field(default_factory=AdmissionConfig)
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)

    def with_namespaces(self, namespaces: Iterable[Namespace]) -> "ClusterAdmission":
        """The same, where these are known besides."""
        return replace(self, namespaces={**self.namespaces, **{each.name: each for each in namespaces}})

    def exempts(self, namespace: str) -> bool:
        """Whether the webhook is sent no pod of a namespace, or passes over them."""
        known = self.namespaces.get(namespace)
        return namespace in self.config.exempt_namespaces or (known is not None and known.is_ignored)

    def default_mode(self, namespace: str) -> str:
        """The mode of containers there that name none; empty leaves them as they are."""
        known = self.namespaces.get(namespace)
        return (known.default_mode if known is not None else "") or self.config.default_mode


def read_namespace(name: str, labels: Mapping[str, Any]) -> Namespace:
    """The Namespace of that name. A mode that there is none of is passed over, as the API server's selectors do."""
    mode = labels.get(LABEL_DEFAULT_MODE)
    return Namespace(name, LABEL_IGNORE in labels, mode if isinstance(mode, str) and mode in DEFAULT_MODES else "")
