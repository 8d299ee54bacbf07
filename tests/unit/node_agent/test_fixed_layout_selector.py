"""Which GPUs an operator names as an administrator's."""

import pytest

from sluice.contracts.ids import GpuUuid, NodeName
from sluice_node_agent.device.port import FixedLayoutSelector, parse_selector

UUID = GpuUuid("GPU-6f6c1d8e-33f4-5d0a-a2b4-1f3f1d1c9e55")
OTHER = GpuUuid("GPU-00000000-33f4-5d0a-a2b4-1f3f1d1c9e55")


@pytest.mark.parametrize(
    ("named", "those"),
    [
        ((), []),
        (("all",), [0, 1, 2]),
        (("n1.example",), [0, 1, 2]),
        (("n1.example:1", "n1.example:2"), [1, 2]),
        (("n2.example", "n2.example:0"), []),
        ((UUID,), [0]),
        ((UUID, "n1.example:2", "n2"), [0, 2]),
    ],
)
def test_one_list_does_for_a_cluster(named, those):
    """A layout would be thought fixed on the wrong node, or not on the right one."""
    fixed = parse_selector(named, NodeName("n1.example"))
    assert [index for index in range(3) if ((UUID if index == 0 else OTHER), index) in fixed] == those


@pytest.mark.parametrize("named", ["GPU-1", "0", "n1:x", "N1", "n1:", "", "n1:1000", "MIG-6f6c1d8e"])
def test_what_names_nothing_is_a_mistake(named):
    """A GPU would be cut up, because its name was misspelt."""
    if named == "0":
        assert parse_selector([named], NodeName("n1")) == FixedLayoutSelector()  # a node of that name
        return
    with pytest.raises(ValueError, match="is no GPU"):
        parse_selector([named], NodeName("n1"))


def test_a_uuid_in_capitals_is_the_gpus():
    """It is taken for a UUID, and its layout is changed all the same."""
    named = parse_selector(["GPU-3F2504E0-4F89-11D3-9A0C-0305E82C3301"], NodeName("n1"))
    assert (GpuUuid("GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301"), 0) in named
