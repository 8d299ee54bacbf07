"""Predict a cluster's admission of a simulated pod: a denial, or warnings."""

from collections.abc import Sequence

import msgspec

from sluice.contracts.admission.violations import Violation, denial_of
from sluice_console.core.documents import SimulatedPodDocument
from sluice_console.core.simulate.answers import refused_pod


def denied_pod(namespace: str, name: str, origin: str, problems: Sequence[Violation]) -> SimulatedPodDocument:
    """The answer for a pod that admission would deny, with admission's message."""
    _, text = denial_of(problems)
    pod = refused_pod(namespace, name, origin, problems[0].refusal)
    return msgspec.structs.replace(pod, message=f"would be refused: {text}")


def with_warnings(pod: SimulatedPodDocument, warnings: Sequence[str]) -> SimulatedPodDocument:
    """The answer with admission's warnings; a refused pod has none."""
    return pod if pod.answer == "refused" else msgspec.structs.replace(pod, warnings=tuple(warnings))
