"""
Parse a pod's GPU request: one interface for every vocabulary that Sluice understands.

A pod's annotations and its containers' resources become claims, or one clear refusal. Nothing is dropped silently: a
key of ours is understood or refused. One file per vocabulary: `sluice_keys` (`sluice.dev/...`), `hami` (HAMi and
Volcano), `mig_resources` (`nvidia.com/mig-...`), `fastgshare`.
"""

from sluice.contracts.request_syntax.claim_text import claim_modes, claim_sizes, claims_text
from sluice.contracts.request_syntax.keys import is_gpu_resource, is_our_annotation
from sluice.contracts.request_syntax.pod_parser import parse_pod
from sluice.contracts.request_syntax.pod_request import ANY_COUNT, ContainerRequest, PodRequest, RequestLimits
from sluice.contracts.request_syntax.source_text import Unquoted

__all__ = [
    "ANY_COUNT",
    "ContainerRequest",
    "PodRequest",
    "RequestLimits",
    "Unquoted",
    "claim_modes",
    "claim_sizes",
    "claims_text",
    "is_gpu_resource",
    "is_our_annotation",
    "parse_pod",
]
