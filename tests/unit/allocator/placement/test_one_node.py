"""All devices of a request on one node."""

from factories.scheduling.placement import Shop, claim, node
from msgspec.structs import replace

from sluice.contracts.messages import DeviceFilter
from sluice_allocator.core.placement import Place


def test_a_gpu_that_another_container_names_is_left_to_it():
    """Two equal GPUs are not as good as each other when the second container may have only the first of them."""
    shop = Shop(node("node-a", 2))
    named = DeviceFilter(uuids=("GPU-node-a-0",))
    place = shop.ask(claim(container="any", profile="7g.40gb"), claim(container="named", profile="7g.40gb", only=named))
    assert isinstance(place, Place)
    assert [(device.container, device.gpu) for device in place.devices] == [
        ("any", "GPU-node-a-1"),
        ("named", "GPU-node-a-0"),
    ]


def test_a_gpu_on_the_numa_node_that_another_container_needs_is_left_to_it():
    """A container that may be anywhere does not take what one that must stay on a NUMA node cannot do without."""
    empty = node("node-a", 3)
    gpus = tuple(replace(report, numa_node=numa) for report, numa in zip(empty.gpus, (0, 1, 1), strict=True))
    shop = Shop(replace(empty, gpus=gpus))
    place = shop.ask(
        claim(container="any", profile="7g.40gb"), claim(container="bound", profile="7g.40gb", gpus=2, numa_bind=True)
    )
    assert isinstance(place, Place)
    assert {device.gpu for device in place.devices if device.container == "bound"} == {"GPU-node-a-1", "GPU-node-a-2"}
