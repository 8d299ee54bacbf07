"""
Amounts of GPU resources as the API server would have judged them, had they not been taken out before it looked.

Its rules for extended resources (https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/): a
limit for each request, and both equal. That they are whole numbers, whoever understands them says.
"""

from collections.abc import Collection, Iterator

from sluice.contracts.admission.pod_fields import Container
from sluice.contracts.admission.violations import Violation, invalid
from sluice.contracts.kube.quantities import NotANumber, parse_quantity
from sluice.contracts.request_syntax.keys import is_gpu_resource
from sluice.contracts.request_syntax.source_text import is_blank_amount, source_text_of


def validate_amounts(path: str, container: Container, asked: Collection[str]) -> Iterator[Violation]:
    """
    What the API server would have refused about one container's GPU resources.

    Of those alone that it asks for: a default request without a limit, which says nothing beside an ask, is taken out.
    """
    limits, requests = container.amounts()
    for name, requested in requests.items():
        if not is_gpu_resource(name) or is_blank_amount(requested) or name not in asked:
            continue
        field, value = f"{path}.resources.requests[{name}]", source_text_of(requested)
        if is_blank_amount(limits.get(name)):
            yield invalid(field, value, "a GPU resource needs a limit, and has only a request", "the same under limits")
        elif not _equal(value, source_text_of(limits[name])):
            limit = source_text_of(limits[name])[:40]
            yield invalid(
                field, value, f"differs from its limit {limit!r}", "equal request and limit, or the limit alone"
            )


def _equal(one: str, other: str) -> bool:
    """Whether both are the same amount; what is no amount is refused elsewhere."""
    sizes = parse_quantity(one), parse_quantity(other)
    return one == other or any(isinstance(size, NotANumber) for size in sizes) or sizes[0] == sizes[1]
