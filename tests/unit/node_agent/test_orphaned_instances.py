"""Journal and ledger lost while slices are made or unmade: what is left behind goes, and what has an owner stays."""

import pytest
from factories.crashes import deaths
from factories.gpus.shared_devices import KINDS, SMALL, WHOLE, booked, compute_modes

from sluice.contracts.bus.events import Ticked
from sluice.contracts.messages import SliceFailed, SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core import instructions as do


def calm(node):
    """The agent comes back, and works until there is nothing to do; some time passes."""
    node.live()
    node.tick(30.0, times=5)


def what_is_left(node):
    """On GPUs, in homes and tickets, and in compute modes; marks too."""
    hardware = node.hardware.read()
    instances = [instance for gpu in hardware.gpus for instance in gpu.instances]
    modes = [gpu.uuid for gpu in hardware.gpus if gpu.exclusive_process]
    return [*instances, *modes, *node.mps.homes.values(), *node.tickets.names(), *node.marks.found(node.backend.read())]


def is_ready(node):
    return {report.state for report in node.agent.snapshot().slices} == {"ready"}


def foreign(node):
    gpus = node.agent.snapshot().gpus
    return [(gpu.index, i.profile, i.start) for gpu in gpus for i in gpu.instances if i.allocation is None]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_was_being_made_stays_on_a_gpu_for_ever(make_node, kind):
    """Its place would be lost until a person removes it by hand."""
    for death in deaths(least=5):
        node = make_node()
        node.order(node.grant(booked(node, kind)))
        death.strikes(node)
        node.lose_both()
        calm(node)
        assert is_ready(node) or what_is_left(node) == [], f"after {death.steps} steps"


def half_unmade(make_node, kind):
    """Nodes on which such a slice was being taken back when the agent stopped, each a step further."""
    for death in deaths(least=4):
        node = make_node()
        node.order(node.revoke(node.serve(booked(node, kind))))
        death.strikes(node)
        if not death.ended:
            yield death.steps, node


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_was_being_unmade_stays_on_a_gpu_for_ever(make_node, kind):
    """A pod that ended in the wrong second would cost its place."""
    for steps, node in half_unmade(make_node, kind):
        node.lose_both()
        calm(node)
        assert is_ready(node) or what_is_left(node) == [], f"after {steps} steps"


def test_a_slice_that_is_taken_back_unmade_does_not_keep_what_is_in_its_way(make_node):
    """A whole GPU would be quarantined for good, by a daemon without tenants and a slice that never was."""
    for death in deaths():
        node = make_node()
        node.order(node.grant(booked(node, "share of a whole GPU")))
        death.strikes(node)
        if node.tickets.names():
            break  # it is known again, and has its GPU
        node.lose_both()
        node.order(node.revoke(node.booking("a2", WHOLE, owner="pod-2")))
        calm(node)
        assert isinstance(node.word("a2"), SliceGone), f"after {death.steps} steps: {node.word('a2')}"
        assert what_is_left(node) == [], f"after {death.steps} steps"
    assert death.steps > 4


def what_is_left_when_it_is_said_to_be_gone(node):
    """All that is on the node in the moments in which a slice is said to be gone."""
    left = []
    node.on_write[SliceGone] = lambda _: left.extend(what_is_left(node))
    return left


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_being_unmade_is_gone_when_that_is_said_although_the_journal_was_lost(make_node, kind):
    """Its place would be granted to a pod that finds a GPU that takes no process but a daemon's."""
    for steps, node in half_unmade(make_node, kind):
        node.remove_journal()
        left = what_is_left_when_it_is_said_to_be_gone(node)
        calm(node)
        assert isinstance(node.word("a1"), SliceGone), f"after {steps} steps"
        assert left == [] == what_is_left(node), f"after {steps} steps"


@pytest.mark.parametrize("lose", ["journal and ledger", "journal"])
def test_a_whole_gpu_is_handed_out_only_when_it_serves_no_daemon_any_more(make_node, lose):
    """A pod that starts a second process would be refused it by its own GPU."""
    for steps, node in half_unmade(make_node, "share of a whole GPU"):
        (node.lose_both if lose == "journal and ledger" else node.remove_journal)()
        node.order(node.grant(node.booking("a2", WHOLE), after=("a1",) if node.ledger else ()))
        calm(node)
        if lose == "journal and ledger" and isinstance(node.word("a1"), SliceReady):
            continue  # its ticket was there still: it has the place
        assert isinstance(node.word("a2"), SliceReady), f"after {steps} steps"
        assert not node.hardware.read().gpus[2].exclusive_process, f"after {steps} steps"


def test_what_an_administrator_made_where_ours_was_just_unmade_stays(node):
    """The GPU was silent when the journal was lost, and is read only now: the mark would claim it for us."""
    node.serve(node.booking("a1", SMALL))
    node.remove_journal()
    node.fault(gpu_lost=0)
    node.live()
    node.take_back(node.booking("a1", SMALL))
    node.fault(gpu_lost=-1)
    node.own_done.clear()
    while not any(isinstance(step, do.DestroyGpuInstance) for step in node.own_done):
        node.now += 1.0
        node.handle(Ticked())
        while node.waiting and not node.work(own_max=1) and not isinstance(node.own_done[-1], do.DestroyGpuInstance):
            assert not isinstance(node.own_done[-1], do.ReadGpu)
    node.backend.create_gpu_instance(node.gpus[0], 14, 4, 2)
    node.work()
    node.tick(30.0, times=5)
    assert isinstance(node.word("a1"), SliceGone)
    assert foreign(node) == [(0, "2g.10gb", 4)]


def test_a_slice_is_gone_only_with_what_it_left_behind(node):
    """Its place would be reported free while its instance exists: it was orphaned before the Revoke came."""
    booking = node.serve(node.booking("a1", SMALL))
    node.order(node.revoke(booking))
    node.work(own_max=4)
    node.lose_both()
    node.refused = [do.DestroyGpuInstance] * 20
    node.live()
    node.order(node.revoke(booking, 3))
    for _ in range(6):
        node.tick(30.0)
        assert node.instances() == [("2g.10gb", 4, 2)]
        assert not isinstance(node.word("a1"), SliceGone)
    assert isinstance(node.word("a1"), SliceQuarantined)
    node.refused = []
    node.tick(30.0)
    node.tick(1.0)
    assert node.instances() == []
    assert isinstance(node.word("a1"), SliceGone)


def test_while_a_ticket_is_doubted_nothing_is_cleared_away(node):
    node.serve(node.booking("a1", SMALL))
    (ticket,) = node.tickets.names()
    half_made(node, gpu=1, allocation="a2")
    (node.tmp_path / "tickets" / ticket / "slice.json").write_text("{}")
    node.lose_both()
    calm(node)
    assert node.instances(0) == [("2g.10gb", 4, 2)]
    assert node.instances(1) == [("2g.10gb", 4, 2)]
    assert set(foreign(node)) == {(0, "2g.10gb", 4), (1, "2g.10gb", 4)}


def out_of_use(node):
    """The places of the whole GPU that take no slice."""
    return [(span.start, span.size) for span in node.agent.snapshot().gpus[2].quarantined]


def test_a_whole_gpu_that_serves_an_unknown_daemon_is_out_of_use(node):
    """Such a GPU would be granted to pods that wait for ever: nothing that is seen there says that it is not free."""
    node.serve(node.share("a1", WHOLE))
    node.tickets.remove(*node.tickets.names())
    node.mps.enter(77, node.gpus[2], "pod-1")
    node.lose_both()
    calm(node)
    assert out_of_use(node) == [(0, 8)]
    node.mps.leave(77)
    node.tick(30.0, times=3)
    assert (what_is_left(node), out_of_use(node)) == ([], [])


def test_a_share_that_is_put_beside_an_unknown_daemon_changes_nothing_for_its_tenants(node):
    """The GPU would take processes that go past the daemon, beside a pod whose ticket is doubted; or be granted."""
    node.serve(node.share("a1", WHOLE))
    (ticket,) = node.tickets.names()
    (node.tmp_path / "tickets" / ticket / "slice.json").write_text("{}")
    node.lose_both()
    other = node.share("a2", WHOLE, namespace="team-b", owner="pod-2")
    node.order(node.grant(other))
    calm(node)
    assert isinstance(node.word("a2"), SliceFailed)
    node.order(node.revoke(other))
    node.tick(30.0, times=3)
    assert isinstance(node.word("a2"), SliceGone)
    assert compute_modes(node)[2]
    assert len(node.mps.living()) == 1
    assert out_of_use(node) == [(0, 8)]


def test_before_the_node_is_opened_nothing_is_cleared_away(node):
    half_made(node)
    node.lose_both()
    node.own_done.clear()
    node.begin()
    node.tick(60.0, times=3)
    assert not [each for each in node.own_done if isinstance(each, (do.ListHolders, do.DestroyComputeInstance))]
    assert node.instances() == [("2g.10gb", 4, 2)]


def half_made(node, gpu=0, allocation="a1"):
    node.own_done.clear()
    node.order(node.grant(node.booking(allocation, (gpu, *SMALL[1:]))))
    while not (node.own_done and type(node.own_done[-1]).__name__ == "VerifyInstance"):
        assert not node.work(own_max=1)
    assert any(isinstance(each, do.CreateGpuInstance) for each in node.own_done)
