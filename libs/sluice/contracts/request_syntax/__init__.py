"""Parse a pod's GPU request: one interface for every vocabulary that Sluice understands, each in its own file.

A pod's annotations and its containers' resources become claims, or one clear refusal. Nothing is dropped silently."""

from sluice.contracts.request_syntax.claim_text import claim_modes as claim_modes
from sluice.contracts.request_syntax.claim_text import claim_sizes as claim_sizes
from sluice.contracts.request_syntax.claim_text import claims_text as claims_text
from sluice.contracts.request_syntax.keys import is_gpu_resource as is_gpu_resource
from sluice.contracts.request_syntax.keys import is_our_annotation as is_our_annotation
from sluice.contracts.request_syntax.pod_parser import parse_pod as parse_pod
from sluice.contracts.request_syntax.pod_request import ANY_COUNT as ANY_COUNT
from sluice.contracts.request_syntax.pod_request import ContainerRequest as ContainerRequest
from sluice.contracts.request_syntax.pod_request import PodRequest as PodRequest
from sluice.contracts.request_syntax.pod_request import RequestLimits as RequestLimits
from sluice.contracts.request_syntax.source_text import Unquoted as Unquoted
