"""Journal and ledger lost while slices are made or unmade: what is left behind goes, and nothing of anybody's does."""

import itertools

import pytest
from factories.gpus.shared_devices import compute_modes
from msgspec.structs import replace

from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.messages import SliceFailed, SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core.instructions import (
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ListHolders,
    ReadGpu,
    SaveJournal,
    SetComputeMode,
)
from sluice_node_agent.core.recovery.discovered import Discovered

SMALL = (0, "2g.10gb", 4, 2)
WHOLE = (2, None, 0, 8)
KINDS = ("exclusive", "share", "share of a whole GPU", "whole GPU")
STEPS_MAX = 60


def booking_of(node, kind):
    match kind:
        case "exclusive":
            return node.booking("a1", SMALL)
        case "share":
            return node.share("a1", SMALL)
        case "share of a whole GPU":
            return node.share("a1", WHOLE)
    return node.booking("a1", WHOLE)


def lose_both(node):
    """The broker is wiped and the journal lost; only what is on the node itself is left."""
    node.stop()
    (node.tmp_path / "agent" / "journal").unlink()
    node.ledger.clear()
    node.words.clear()


def calm(node):
    """The agent comes back, and works until there is nothing to do; some time passes."""
    node.live()
    for _ in range(5):
        node.tick(30.0)


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
    """Its place would be lost to everybody until a person removes it by hand."""
    for steps in range(STEPS_MAX):
        node = make_node()
        node.live()
        node.order(node.grant(booking_of(node, kind)))
        if node.work(own_max=steps):
            break
        lose_both(node)
        calm(node)
        assert is_ready(node) or what_is_left(node) == [], f"after {steps} steps"
    else:
        pytest.fail(f"more than {STEPS_MAX} steps")
    assert steps > 4


def half_unmade(make_node, kind):
    """Nodes on which such a slice was being taken back when the agent stopped, each a step further."""
    for steps in range(STEPS_MAX):
        node = make_node()
        node.live()
        booking = booking_of(node, kind)
        node.order(node.grant(booking))
        node.work()
        node.order(node.revoke(booking))
        if node.work(own_max=steps):
            assert steps > 3
            return
        yield steps, node
    pytest.fail(f"more than {STEPS_MAX} steps")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_was_being_unmade_stays_on_a_gpu_for_ever(make_node, kind):
    """A pod that ended in the wrong second would cost its place."""
    for steps, node in half_unmade(make_node, kind):
        lose_both(node)
        calm(node)
        assert is_ready(node) or what_is_left(node) == [], f"after {steps} steps"


def test_a_slice_that_is_taken_back_unmade_does_not_keep_what_is_in_its_way(make_node):
    """A whole GPU would be quarantined for good, by a daemon without tenants and a slice that never was."""
    for steps in range(STEPS_MAX):
        node = make_node()
        node.live()
        node.order(node.grant(booking_of(node, "share of a whole GPU")))
        assert not node.work(own_max=steps)
        if node.tickets.names():
            break  # it is known again, and has its GPU
        lose_both(node)
        node.order(node.revoke(node.booking("a2", WHOLE, owner="pod-2")))
        calm(node)
        assert isinstance(node.word("a2"), SliceGone), f"after {steps} steps: {node.word('a2')}"
        assert what_is_left(node) == [], f"after {steps} steps"
    else:
        pytest.fail(f"more than {STEPS_MAX} steps")
    assert steps > 4


def lose_the_journal(node):
    node.stop()
    (node.tmp_path / "agent" / "journal").unlink()


def what_is_left_when_it_is_said_to_be_gone(node):
    """All that is on the node in the moments in which a slice is said to be gone."""
    left, answer = [], node.answer

    def listening(instruction):
        if isinstance(instruction, Write) and isinstance(instruction.message, SliceGone):
            left.extend(what_is_left(node))
        answer(instruction)

    node.answer = listening
    return left


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_being_unmade_is_gone_when_that_is_said_although_the_journal_was_lost(make_node, kind):
    """Its place would be given to somebody who finds a GPU that takes no process but a daemon's."""
    for steps, node in half_unmade(make_node, kind):
        lose_the_journal(node)
        left = what_is_left_when_it_is_said_to_be_gone(node)
        calm(node)
        assert isinstance(node.word("a1"), SliceGone), f"after {steps} steps"
        assert left == [] == what_is_left(node), f"after {steps} steps"


def test_what_is_kept_warm_does_not_pass_for_a_slice_that_waits_when_the_journal_is_lost(make_node):
    """It would be given the home of the one that it waits for, while that one's daemon and tenant are there."""
    for steps in range(STEPS_MAX):
        node = make_node(keep_warm_s=600.0)
        node.live()
        first, closed = node.share("a1", SMALL), node.booking("a3", (0, "1g.5gb", 6, 1))
        for booking in (first, closed):
            node.order(node.grant(booking))
        node.work()
        node.order(node.revoke(closed))
        node.work()
        node.order(node.closed(closed))
        node.order(node.grant(node.booking("a2", SMALL, (0, "1g.5gb", 6, 1)), after=("a1", "a3")))
        node.order(node.revoke(first))
        if node.work(own_max=steps):
            break
        lose_the_journal(node)
        left = daemons_when_one_is_said_to_be_gone(node)
        calm(node)
        assert left == [0], f"after {steps} steps"
        assert isinstance(node.word("a2"), SliceReady), f"after {steps} steps"
    else:
        pytest.fail(f"more than {STEPS_MAX} steps")
    assert steps > 3


def daemons_when_one_is_said_to_be_gone(node):
    """How many MPS daemons run in the moments in which a slice is said to be gone."""
    counts, answer = [], node.answer

    def listening(instruction):
        said = instruction.message if isinstance(instruction, Write) else None
        if isinstance(said, SliceGone) and not said.closing:
            counts.append(len(node.mps.homes))
        answer(instruction)

    node.answer = listening
    return counts


@pytest.mark.parametrize("lose", ["journal and ledger", "journal"])
def test_a_whole_gpu_is_handed_out_only_when_it_serves_no_daemon_any_more(make_node, lose):
    """A pod that starts a second process would be refused it by its own GPU."""
    for steps, node in half_unmade(make_node, "share of a whole GPU"):
        (lose_both if lose == "journal and ledger" else lose_the_journal)(node)
        node.order(node.grant(node.booking("a2", WHOLE), after=("a1",) if node.ledger else ()))
        calm(node)
        if lose == "journal and ledger" and isinstance(node.word("a1"), SliceReady):
            continue  # its ticket was there still: it has the place
        assert isinstance(node.word("a2"), SliceReady), f"after {steps} steps"
        assert not node.hardware.read().gpus[2].exclusive_process, f"after {steps} steps"


def test_orders_that_come_meanwhile_do_not_hand_out_a_gpu_that_is_being_set_back(node):
    """Each order has all that waits looked at again: a pod would get a GPU that takes no process but a daemon's."""
    a_daemon_serves_nobody_yet(node)
    lose_both(node)
    node.order(node.grant(node.booking("a2", WHOLE)))
    node.start()
    node.work()
    node.open()
    for number in itertools.count():
        if not node.hardware.read().gpus[2].exclusive_process:
            break
        said = node.order(node.grant(node.share(f"b{number}", WHOLE), after=("a2",)))
        assert [each.record.booking.allocation for each in said if isinstance(each, SaveJournal)] == [f"b{number}"]
        assert not node.work(own_max=1)
    assert number > 3
    calm(node)
    assert isinstance(node.word("a2"), SliceReady)


def test_warm_instances_go_when_nobody_knows_them_any_more(make_node):
    """They have no tenant: after a lost journal they were foreign for ever, with no ledger lost at all."""
    node = make_node(keep_warm_s=600.0)
    node.live()
    booking = node.booking("a1", SMALL)
    node.order(node.grant(booking))
    node.work()
    node.order(node.revoke(booking))
    node.work()
    assert node.instances() == [("2g.10gb", 4, 2)]
    node.order(node.closed(booking))
    node.work()
    node.stop()
    (node.tmp_path / "agent" / "journal").unlink()
    calm(node)
    assert foreign(node) == []
    node.tick(601.0)
    node.tick()
    assert node.instances() == []


def test_what_an_administrator_made_stays(node):
    """Somebody's work would be destroyed, because Sluice lost a file."""
    node.live()
    node.backend.create_gpu_instance(node.gpus[0], 14, 4, 2)
    half_made(node, gpu=1)
    lose_both(node)
    calm(node)
    assert node.instances(0) == [("2g.10gb", 4, 2)]
    assert node.instances(1) == []
    assert foreign(node) == [(0, "2g.10gb", 4)]


def test_what_an_administrator_made_where_ours_was_just_unmade_stays(node):
    """The GPU was silent when the journal was lost, and is read only now: the mark of ours would speak for it."""
    node.live()
    node.order(node.grant(node.booking("a1", SMALL)))
    node.work()
    node.stop()
    (node.tmp_path / "agent" / "journal").unlink()
    with node.hardware.changing() as hardware:
        hardware.faults.gpu_lost = 0
    node.live()
    node.order(node.revoke(node.booking("a1", SMALL)))
    node.work()
    with node.hardware.changing() as hardware:
        hardware.faults.gpu_lost = -1
    node.own_done.clear()
    while not any(isinstance(step, DestroyGpuInstance) for step in node.own_done):
        node.now += 1.0
        node.handle(Ticked())
        while node.waiting and not node.work(own_max=1) and not isinstance(node.own_done[-1], DestroyGpuInstance):
            assert not isinstance(node.own_done[-1], ReadGpu)
    node.backend.create_gpu_instance(node.gpus[0], 14, 4, 2)
    node.work()
    for _ in range(5):
        node.tick(30.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert foreign(node) == [(0, "2g.10gb", 4)]


def test_what_a_process_uses_stays_until_the_process_is_gone(node):
    """A pod whose slice was being taken back still runs: its device must not vanish under it."""
    node.live()
    booking = node.booking("a1", SMALL)
    node.order(node.grant(booking))
    node.work()
    uuid = node.hardware.read().gpus[0].instances[0].uuid
    node.mps.enter(4711, uuid, "pod-1")
    node.order(node.revoke(booking))
    node.work(own_max=4)
    assert node.tickets.names() == ()
    lose_both(node)
    calm(node)
    assert foreign(node) == [(0, "2g.10gb", 4)]
    node.mps.leave(4711)
    calm(node)
    assert node.instances() == []


def test_a_slice_is_gone_only_with_what_it_left_behind(node):
    """Its place would be reported free while its instance exists: it was orphaned before the Revoke came."""
    node.live()
    booking = node.booking("a1", SMALL)
    node.order(node.grant(booking))
    node.work()
    node.order(node.revoke(booking))
    node.work(own_max=4)
    lose_both(node)
    node.refused = [DestroyGpuInstance] * 20
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
    """What the ticket's pod uses is unknown."""
    node.live()
    node.order(node.grant(node.booking("a1", SMALL)))
    node.work()
    (ticket,) = node.tickets.names()
    half_made(node, gpu=1, allocation="a2")
    (node.tmp_path / "tickets" / ticket / "slice.json").write_text("{}")
    lose_both(node)
    calm(node)
    assert node.instances(0) == [("2g.10gb", 4, 2)]
    assert node.instances(1) == [("2g.10gb", 4, 2)]
    assert set(foreign(node)) == {(0, "2g.10gb", 4), (1, "2g.10gb", 4)}


@pytest.mark.parametrize("why", ["a ticket is doubted", "a process is there"])
def test_a_whole_gpu_that_serves_a_daemon_of_nobody_known_is_out_of_use(node, why):
    """Such a GPU would be granted to pods that wait for ever: nothing that is seen there says that it is not free."""
    node.live()
    node.order(node.grant(node.share("a1", WHOLE)))
    node.work()
    (ticket,) = node.tickets.names()
    if why == "a ticket is doubted":
        (node.tmp_path / "tickets" / ticket / "slice.json").write_text("{}")
    else:
        node.tickets.remove(ticket)
        node.mps.enter(77, node.gpus[2], "pod-1")
    lose_both(node)
    calm(node)
    assert [(span.start, span.size) for span in node.agent.snapshot().gpus[2].quarantined] == [(0, 8)]
    if why == "a process is there":
        node.mps.leave(77)
        for _ in range(3):
            node.tick(30.0)
        assert what_is_left(node) == []
        assert node.agent.snapshot().gpus[2].quarantined == ()


def test_a_share_that_is_put_beside_a_daemon_of_nobody_known_changes_nothing_for_its_tenants(node):
    """The GPU would take processes that go past the daemon, beside a pod whose ticket is doubted."""
    node.live()
    node.order(node.grant(node.share("a1", WHOLE)))
    node.work()
    (ticket,) = node.tickets.names()
    (node.tmp_path / "tickets" / ticket / "slice.json").write_text("{}")
    lose_both(node)
    node.order(node.grant(node.share("a2", WHOLE, namespace="team-b", owner="pod-2")))
    calm(node)
    assert isinstance(node.word("a2"), SliceFailed)
    node.order(node.revoke(node.share("a2", WHOLE, namespace="team-b", owner="pod-2")))
    for _ in range(3):
        node.tick(30.0)
    assert isinstance(node.word("a2"), SliceGone)
    assert compute_modes(node)[2]
    assert len(node.mps.living()) == 1
    assert [(span.start, span.size) for span in node.agent.snapshot().gpus[2].quarantined] == [(0, 8)]


def test_what_was_found_is_forgotten_when_it_is_not_there_any_more(node):
    """The driver gives ids again: a home that was being made was taken down for what had its id before (seed 1732)."""
    node.start()
    gpu, other = node.gpus[:2]
    report = node.backend.read_gpu(gpu)
    found = Discovered(unclaimed={(gpu, 3): "", (gpu, 4): "", (other, 3): ""})
    found.made((gpu, 3))
    assert found.unclaimed == {(gpu, 4): "", (other, 3): ""}
    found.was_read(replace(report, lost=True))
    assert found.unclaimed == {(gpu, 4): "", (other, 3): ""}
    found.was_read(report)
    assert found.unclaimed == {(other, 3): ""}


def test_before_the_node_is_opened_nothing_is_cleared_away(node):
    """Its orders were not read yet."""
    half_made(node)
    lose_both(node)
    node.own_done.clear()
    node.start()
    node.work()
    for _ in range(3):
        node.tick(60.0)
    assert not [each for each in node.own_done if isinstance(each, (ListHolders, DestroyComputeInstance))]
    assert node.instances() == [("2g.10gb", 4, 2)]


def a_daemon_serves_nobody_yet(node):
    """A share of a whole GPU is being made: its home is there, and nothing else."""
    node.live()
    node.order(node.grant(node.share("a1", WHOLE)))
    while not any(isinstance(each, SetComputeMode) for each in node.own_done):
        node.work(own_max=1)
    assert node.hardware.read().gpus[2].exclusive_process


def half_made(node, gpu=0, allocation="a1"):
    if node.journal is None:
        node.live()
    node.own_done.clear()
    place = (gpu, *SMALL[1:])
    node.order(node.grant(node.booking(allocation, place)))
    while not (node.own_done and type(node.own_done[-1]).__name__ == "VerifyInstance"):
        assert not node.work(own_max=1)
    assert any(isinstance(each, CreateGpuInstance) for each in node.own_done)
