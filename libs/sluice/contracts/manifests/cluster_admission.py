"""The admission rules of the cluster that manifests are for, and the labels of its namespaces."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contracts.admission import AdmissionConfig
from sluice.contracts.kube.names import DEFAULT_MODES, LABEL_DEFAULT_MODE, LABEL_IGNORE


@dataclass(frozen=True, slots=True)
class Namespace:
    """The labels of a Namespace among the manifests, as the API server reads them (docs/admission.md)."""

    name: str
    is_ignored: bool = False
    default_mode: str = ""
    """For containers that name none; empty leaves it to the cluster's default."""


@dataclass(frozen=True, slots=True)
class ClusterAdmission:
    """By default, a cluster without any settings."""

    config: AdmissionConfig = field(default_factory=AdmissionConfig)
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)

    def with_namespaces(self, namespaces: Iterable[Namespace]) -> "ClusterAdmission":
        """The same with these namespaces added."""
        return replace(self, namespaces={**self.namespaces, **{each.name: each for each in namespaces}})

    def exempts(self, namespace: str) -> bool:
        """Whether the webhook is not called for pods of a namespace, or ignores them."""
        known = self.namespaces.get(namespace)
        return namespace in self.config.exempt_namespaces or (known is not None and known.is_ignored)

    def default_mode(self, namespace: str) -> str:
        """The default mode of a namespace; empty leaves containers as they are."""
        known = self.namespaces.get(namespace)
        return (known.default_mode if known is not None else "") or self.config.default_mode


def read_namespace(name: str, labels: Mapping[str, Any]) -> Namespace:
    """The Namespace of that name. An unknown mode is ignored, as by the API server's selectors."""
    mode = labels.get(LABEL_DEFAULT_MODE)
    return Namespace(name, LABEL_IGNORE in labels, mode if isinstance(mode, str) and mode in DEFAULT_MODES else "")
