"""A GPU whose layout is an administrator's: what is there is handed out, and nothing is made or destroyed."""

import pytest
from factories.gpus.admin_layouts import (
    LARGE,
    LAYOUT,
    SMALL,
    admin_makes,
    admin_removes,
    changes,
    granted,
    opened,
    report,
    reread,
    revoked,
    use,
    uuid_at,
)

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import SliceDegraded, SliceFailed, SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core import instructions as do
from sluice_node_agent.device.port import FixedLayoutSelector, parse_selector


@pytest.fixture
def node(make_node):
    """A node with a fixed GPU, one that Sluice cuts up, and one without MIG; opened."""
    return opened(make_node)


def test_what_is_offered_is_what_is_free(node):
    """People would count on slices that are taken, or not know of those that are free."""
    before = {"1g.5gb": 1, "2g.10gb": 1, "3g.20gb": 1}
    seen = report(node)
    assert seen.fixed_layout
    assert {name: count for name, count in seen.creatable.items() if count} == before
    assert set(seen.creatable) == {profile.name for profile in seen.profiles}
    granted(node)
    seen = report(node)
    assert {name: count for name, count in seen.creatable.items() if count} == {"2g.10gb": 1, "3g.20gb": 1}
    shown = [(i.start, i.allocation, i.unusable) for i in seen.instances]
    assert shown == [(0, None, ""), (4, None, ""), (6, "a1", "")]
    assert not report(node, 1).fixed_layout
    assert report(node, 1).creatable["7g.40gb"] == 1


def test_a_slice_of_several_gpus_is_half_made_and_half_found(node):
    """A pod of a mixed fleet would leave its own half behind, or take the administrator's along."""
    booking, word = granted(node, "a1", LARGE, (1, "2g.10gb", 0, 2))
    assert isinstance(word, SliceReady)
    assert changes(node) == [do.CreateGpuInstance, do.CreateComputeInstance]
    assert isinstance(revoked(node, booking), SliceGone)
    assert (node.instances(0), node.instances(1)) == (LAYOUT, [])


def test_who_uses_an_instance_directly_keeps_it_and_is_named(node):
    """A tenant would share its device with a stranger, and the reason for an unavailable slice would be unknown."""
    device = uuid_at(node, 6)
    use(node, device)
    reread(node)
    seen = report(node)
    assert seen.creatable["1g.5gb"] == 0
    (used,) = [each.unusable for each in seen.instances if each.unusable]
    assert used == "it is used by python 4711, which Sluice did not start"
    _, word = granted(node)
    assert isinstance(word, SliceFailed)
    assert (word.error, word.message) == ("InUse", f"{device} on {node.gpus[0]} is used by python 4711")

    node.mps.leave(4711)
    reread(node)
    assert report(node).creatable["1g.5gb"] == 1
    assert isinstance(granted(node, "a2")[1], SliceReady)


def test_it_is_gone_only_when_no_process_of_the_tenant_is_left(node):
    """The next tenant would find the last one still at work."""
    booking, word = granted(node)
    use(node, word.devices[0].uuid, owner="pod-1")
    revoked(node, booking)
    node.tick(30, times=12)
    assert isinstance(node.word("a1"), SliceQuarantined)
    assert report(node).creatable["1g.5gb"] == 0
    node.mps.leave(4711)
    node.tick(60)
    assert isinstance(node.word("a1"), SliceGone)
    assert node.instances() == LAYOUT


def test_an_instance_without_compute_instance_is_not_offered_and_says_why(node):
    """A pod would be given a device that no program can open."""
    admin_removes(node, 6)
    admin_makes(node, "1g.5gb", 6, 1, uuid="")
    reread(node)
    (why,) = [each.unusable for each in report(node).instances if each.unusable]
    assert why == "it has no compute instance; its administrator has to create it"
    assert report(node).creatable["1g.5gb"] == 0
    _, word = granted(node)
    assert isinstance(word, SliceFailed)
    assert "no compute instance" in word.message
    assert changes(node) == []


def test_a_slice_whose_instance_was_taken_away_is_degraded_and_comes_back_with_it(node):
    """A pod would be given a device that is not there as if all were well; or never get it back."""
    _, before = granted(node)
    admin_removes(node, 6)
    reread(node)
    word = node.says("a1", SliceDegraded)
    assert "fixed layout has no 1g.5gb there; its administrator has to make one" in word.message
    assert node.tickets.names() == ()
    assert changes(node) == []

    admin_makes(node, "1g.5gb", 6, 1)
    reread(node)
    node.tick(node.config.remake_retry_s)
    again = node.says("a1", SliceReady)
    assert again.devices[0].uuid == "MIG-of-the-admin"
    assert again.ticket != before.ticket


def test_a_home_lives_in_an_instance_that_is_there_and_leaves_it_there(node):
    one, two = node.share("a1", SMALL), node.share("a2", SMALL, owner="pod-2")
    node.ready(one, two)
    (daemon,) = node.mps.living()
    assert daemon.order.device == uuid_at(node, 6)
    assert report(node).creatable["1g.5gb"] == 0
    assert isinstance(revoked(node, one), SliceGone)
    assert node.mps.living() == [daemon]
    assert isinstance(revoked(node, two), SliceGone)
    assert node.mps.living() == []
    assert changes(node) == []
    assert node.instances() == LAYOUT
    reread(node)
    assert report(node).creatable["1g.5gb"] == 1


def test_a_home_is_not_made_in_what_a_tenant_has_alone(node):
    """Shares would be put on a device that a tenant has to itself."""
    granted(node)
    node.serve(node.share("a2", SMALL, owner="pod-2"))
    assert "is a1's still" in node.says("a2", SliceFailed).message


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


@pytest.mark.parametrize("named", ["GPU-1", "n1:x", "N1", "n1:", "", "n1:1000", "MIG-6f6c1d8e"])
def test_what_names_nothing_is_a_mistake(named):
    """A GPU would be cut up, because its name was misspelt."""
    with pytest.raises(ValueError, match="is no GPU"):
        parse_selector([named], NodeName("n1"))


def test_a_uuid_in_capitals_is_the_gpus_and_a_number_is_a_nodes():
    """It is taken for a UUID, and its layout is changed all the same."""
    assert parse_selector(["0"], NodeName("n1")) == FixedLayoutSelector()
    named = parse_selector(["GPU-3F2504E0-4F89-11D3-9A0C-0305E82C3301"], NodeName("n1"))
    assert (GpuUuid("GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301"), 0) in named
