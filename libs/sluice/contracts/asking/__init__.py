"""
What a pod asks for, read from what a person wrote: one face for every vocabulary that Sluice understands.

Here a pod's annotations and its containers' resources become claims, or one clear refusal. Nothing is decided about
places, and nothing is dropped silently: a key that is ours is understood or refused. One file per vocabulary:
`sluice_keys` (`sluice.dev/...`), `hami` (HAMi and Volcano), `mig_resources` (`nvidia.com/mig-...`), `fastgshare`.
"""

from sluice.contracts.asking.keys import is_gpu_resource, is_our_annotation
from sluice.contracts.asking.parsing import parse_pod
from sluice.contracts.asking.pods import ANY_COUNT, AskLimits, ContainerAsk, PodAsk
from sluice.contracts.asking.words import claim_modes, claim_sizes
from sluice.contracts.asking.written import Unquoted

__all__ = [
    "ANY_COUNT",
    "AskLimits",
    "ContainerAsk",
    "PodAsk",
    "Unquoted",
    "claim_modes",
    "claim_sizes",
    "is_gpu_resource",
    "is_our_annotation",
    "parse_pod",
]
