"""
Validate amounts of GPU resources as the API server would, as they are taken out before it sees them.

Its rules for extended resources (https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/): a
limit for each request, and both equal. The request parser checks that they are whole numbers.
"""

from collections.abc import Collection, Iterator

from sluice.contracts.admission.pod_fields import Container
from sluice.contracts.admission.violations import Violation, forbidden, invalid
from sluice.contracts.dra.class_names import class_of_resource
from sluice.contracts.kube.quantities import NotANumber, parse_quantity
from sluice.contracts.request_syntax.keys import is_gpu_resource
from sluice.contracts.request_syntax.source_text import is_blank_amount, source_text_of


def validate_amounts(path: str, container: Container, asked: Collection[str]) -> Iterator[Violation]:
    """
    What the API server would refuse about one container's GPU resources.

    Only those of its request: a default request without a limit, which has no effect beside it, is removed.
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


def validate_class_resources(path: str, container: Container) -> Iterator[Violation]:
    """
    Resources that stand for a DeviceClass of ours (implicit extended resources).

    The scheduler would make the claim by itself when it binds, and find no devices.
    """
    for part, amounts in zip(("limits", "requests"), container.amounts(), strict=True):
        for name, amount in amounts.items():
            device_class = class_of_resource(name)
            if device_class and not is_blank_amount(amount):
                why = f"the scheduler itself would allocate {device_class} for it, past Sluice"
                right = f"a ResourceClaimTemplate of class {device_class}, or nvidia.com/gpu"
                yield forbidden(f"{path}.resources.{part}[{name}]", source_text_of(amount), why, right)


def _equal(one: str, other: str) -> bool:
    """Whether both are the same amount; an invalid amount is refused elsewhere."""
    sizes = parse_quantity(one), parse_quantity(other)
    return one == other or any(isinstance(size, NotANumber) for size in sizes) or sizes[0] == sizes[1]
