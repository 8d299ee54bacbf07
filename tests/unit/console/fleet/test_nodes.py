"""`sluice nodes`: what people decide by when they scale a fleet down, or look for room."""

import msgspec
import pytest
from factories.console import heard

from sluice.contracts import messages as msg
from sluice.contracts.ids import NodeName
from sluice.runtime.nats_server.free_ports import free_ports
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.nodes import FleetNodeDocument, last_given_back, node_cells, nodes_document
from sluice_console.shell.inspect.nodes import IdleSince

NODE = "gpu-1.example.internal"
SINCE = {NODE: "2026-01-02T03:04:05.678Z"}
A100 = "NVIDIA A100-SXM4-40GB"
CORDONED = msg.HostFacts(cpu_cores=1.0, memory_mib=1, pods_free=1, cordoned=True)


@pytest.fixture
def fleet_state(make):
    def made(inventory=None, **more: msg.AnyMessage) -> FleetState:
        seen = inventory if inventory is not None else make.inventory(make.gpu_report())
        kinds = {name: more.pop(name) for name in ("ledger", "node", "head") if name in more}
        found = make.fleet_state(**({"inventory": seen, "head": make.opened(), "node": make.changed()} | kinds))
        token = "gpu-1_example_internal"
        found.values |= {f"sluice.{kind}.{token}": message for kind, message in more.items()}
        return found

    return made


def only(fleet_state: FleetState, **options) -> FleetNodeDocument:
    (node,) = nodes_document(fleet_state, SINCE, **options).nodes
    return node


def test_a_node_with_nothing_on_it_is_told_with_since_when(fleet_state):
    """A user who pays by the hour returns the node that has been empty for longest."""
    idle = {"idle": True, "idle_since": SINCE[NODE], "gpus": 1, "gpus_empty": 1, "free_fraction": 1.0}
    assert only(fleet_state()) == FleetNodeDocument(node=NODE, state="open", models={A100: 1}, **idle)


def test_a_node_with_a_slice_is_in_use_and_has_so_much_left(fleet_state, make):
    """A node would be given back with a training run on it."""
    seen = make.inventory(make.gpu_report(instances=(make.made(),)), make.slice())
    node = only(fleet_state(seen, ledger=make.grant()))
    assert (node.idle, node.idle_since, node.pods, node.gpus_empty, node.free_fraction) == (False, "", 1, 0, 0.5)
    assert nodes_document(fleet_state(seen, ledger=make.grant()), SINCE, idle_only=True).nodes == ()


@pytest.mark.parametrize("what", ["ordered", "ending", "left by its agent", "of others", "quarantined"])
def test_whatever_is_there_or_comes_keeps_a_node_from_being_idle(fleet_state, make, what):
    """Between two facts a node would look empty while a pod is on it, or about to be."""
    empty = make.inventory(make.gpu_report())
    inventory, ledger = {
        "ordered": (empty, {"ledger": make.grant()}),
        "ending": (empty, {"ledger": make.revoke()}),
        "left by its agent": (make.inventory(make.gpu_report(), make.slice()), {}),
        "of others": (make.inventory(make.gpu_report(instances=(make.made(allocation=None),))), {}),
        "quarantined": (make.inventory(make.gpu_report(quarantined=(msg.PlacementReport(start=0, size=4),))), {}),
    }[what]
    assert not only(fleet_state(inventory, **ledger)).idle


def test_free_instances_of_a_fixed_layout_have_no_owner(fleet_state, make):
    """A node that its administrator partitioned would never be idle."""
    free = msg.InstanceReport(gi_id=1, profile="3g.20gb", start=0, size=4, uuid="MIG-9")
    node = only(fleet_state(make.inventory(make.gpu_report(instances=(free,), fixed_layout=True))))
    assert (node.idle, node.gpus_empty, node.free_fraction, node.foreign) == (True, 1, 1.0, 0)


@pytest.mark.parametrize(
    ("said", "state", "text"),
    [
        ({}, "open", "open"),
        ({"head": None}, "not open", "not open: what its agent reports is not booked yet"),
        ({"cordon": msg.Cordoned(node=NODE, why="fans")}, "cordoned", "cordoned: fans"),
        ({"cordon": msg.Cordoned(node=NODE, why="fans", drain=True)}, "draining", "draining: fans"),
        ({"cordon": msg.Cordoned(node=NODE, gpus=("G1", "G2"), why="fans")}, "open", "open, 2 GPUs cordoned: fans"),
        ({"host": CORDONED}, "cordoned", "cordoned: the node may not be scheduled on in Kubernetes"),
        ({"node": msg.NodeRemoved(node=NODE, cause="x")}, "removed", "removed: its slices are being given up"),
    ],
)
def test_the_state_says_why_a_node_gets_nothing_new(fleet_state, said, state, text):
    """An operator would wonder why nothing lands on a node that is plainly free."""
    found = fleet_state(**{kind: message for kind, message in said.items() if message is not None})
    unsaid = {f"sluice.ledger.gpu-1_example_internal.{kind}" for kind, message in said.items() if message is None}
    found.values = {subject: value for subject, value in found.values.items() if subject not in unsaid}
    node = only(found)
    assert (node.state, node_cells(node)[1]) == (state, text)


def test_a_stale_node_says_what_its_inventory_says(fleet_state, make):
    node = only(fleet_state(make.inventory(make.gpu_report(), stale=True)))
    assert node_cells(node) == (
        NODE, "stale: no answer", "1 x A100-SXM4-40GB", "100%, 1 empty", "0", "2026-01-02 03:04:05",
    )  # fmt: skip


def test_a_removed_node_is_shown_as_long_as_a_message_names_it(make):
    removed = msg.NodeRemoved(node=NodeName(NODE), cause="the Node object was deleted")
    found = make.fleet_state(node=removed, ledger=make.grant())
    assert only(found) == FleetNodeDocument(node=NODE, state="removed", why="the Node object was deleted", pods=1)
    assert node_cells(only(found)) == (NODE, "removed: the Node object was deleted", "", "", "1", "")
    assert nodes_document(found, {}, idle_only=True).nodes == ()


def test_a_removed_node_goes_from_the_list_with_its_last_slice(make):
    """Nodes of a fleet that shrinks every evening stayed in the list for hours."""
    assert nodes_document(make.fleet_state(node=msg.NodeRemoved(node=NodeName(NODE), cause="x")), {}).nodes == ()


@pytest.mark.parametrize(("stale", "state"), [(True, "stale"), (False, "cordoned")])
def test_a_node_that_left_its_cluster_says_so_until_it_is_removed(fleet_state, make, stale, state):
    """An operator who has just deleted it wonders for minutes whether Sluice noticed."""
    gone = msgspec.structs.replace(CORDONED, cpu_cores=0.0, memory_mib=0, pods_free=0)
    node = only(fleet_state(make.inventory(make.gpu_report(), stale=stale), host=gone))
    assert node.state == state
    assert node.why.startswith("its Node object is gone")


def test_since_when_is_when_the_last_slice_was_given_back(make):
    """Where none ever was, when the node was opened: else the newest nodes of a fleet would seem idle for longest."""
    said = (make.opened(), make.closed(), make.closed(), make.opened(), make.opened())
    words = [heard("ledger.n", message, time=f"{second}") for second, message in enumerate(said)]
    assert last_given_back(words) == {NODE: "2"}
    assert last_given_back(words[3:]) == {NODE: "3"}
    assert last_given_back([]) == {}


async def test_nodes_are_shown_although_their_history_cannot_be_read(fleet_state, capsys):
    """A user whose broker is away, or has no HISTORY, wants to see the nodes all the same."""
    (port,) = free_ports(1)
    idle, since = fleet_state(), IdleSince(f"nats://127.0.0.1:{port}")
    assert await since.of(idle) == {}
    assert "the history cannot be read" in capsys.readouterr().err
    assert await since.of(idle) == {}
    assert not capsys.readouterr().err, "it is said once"


def test_an_idle_node_of_which_nothing_is_remembered_says_so(fleet_state):
    (node,) = nodes_document(fleet_state(), {}).nodes
    assert node_cells(node)[-1] == "longer than the history goes back"
