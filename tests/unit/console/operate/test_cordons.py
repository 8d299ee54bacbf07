"""`sluice cordon`, `uncordon`, `drain`: what is published of a node, and which pods are shown to be in the way."""

import asyncio
import contextlib

import msgspec
import pytest
from factories.broker.bus_rigs import say
from factories.broker.memory_bus import MemoryBroker

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import RunId, SourceName
from sluice_console.core.documents import DrainedPodDocument
from sluice_console.core.operate import cordons
from sluice_console.core.operate.cordons import CordonError, check_by_hand, named_gpus, pods_on
from sluice_console.shell.errors import NotFoundError
from sluice_console.shell.operate import cordon
from sluice_console.shell.operate.cordon import _wrong, wait_until_left

NODE = "gpu-1.example.internal"
GPU = "GPU-aaaaaaaa-0000"


def cordoned(*gpus, why="fans", drain=False) -> msg.Cordoned:
    return msg.Cordoned(node=NODE, gpus=gpus, why=why, drain=drain)


def word(last, *gpus, why="", drain=False) -> msg.Cordoned:
    return cordons.cordon_word(NODE, last, gpus, why=why, drain=drain)


@pytest.mark.parametrize("wanted", ["0", GPU])
def test_a_gpu_is_named_by_index_or_uuid(make, wanted):
    assert named_gpus(make.fleet_state(inventory=make.inventory(make.gpu_report())), NODE, (wanted, wanted)) == (GPU,)


def test_what_is_not_there_is_told_with_what_is(make):
    """A cordon of a mistyped name protects nothing and looks as if it did."""
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report()))
    with pytest.raises(cordons.UnknownTargetError, match=f"there is no node gpu-9; known: {NODE}") as unknown:
        named_gpus(fleet_state, "gpu-9", ())
    with pytest.raises(cordons.UnknownTargetError, match=rf"{NODE} has no GPU '3'; it has 0 \({GPU}\)"):
        named_gpus(fleet_state, NODE, ("3",))
    assert _wrong(unknown.value).exit_code == 4  # as docs/cli.md has it for what is not there
    assert _wrong(CordonError("the node is being drained")).exit_code == 2


def test_a_reason_is_as_long_as_one_in_a_limits_file():
    """Every waiting pod shows it: a pasted log would be in every pod's message and on every page."""
    assert word(None, why="x" * 400).why == "x" * 400
    with pytest.raises(CordonError, match="--why of 401 characters: at most 400 are allowed"):
        word(None, why="x" * 401)


def test_what_a_limits_file_says_of_a_node_is_changed_there():
    """The file would set it again, and the person who uncordoned it would wonder."""
    last = msg.Cordoned(node=NODE, why="fans", source=SourceName("cluster"))
    with pytest.raises(CordonError, match=f"node {NODE} is in the limits file of the pod-watcher 'cluster': change"):
        check_by_hand(last, take_over=False)
    check_by_hand(last, take_over=True)
    check_by_hand(cordoned(), take_over=False)
    check_by_hand(msg.Uncordoned(node=NODE, source=SourceName("cluster")), take_over=False)
    assert word(last) == cordoned()  # taken over, it is a person's


@pytest.mark.parametrize("last", [None, msg.Uncordoned(node=NODE), msg.QuotaUnset(namespace="x")])
def test_the_first_word_is_what_was_typed(last):
    assert word(last, "G1", why="fans") == cordoned("G1")
    assert word(last, drain=True) == cordoned(why="", drain=True)


@pytest.mark.parametrize(
    ("before", "gpus", "after"),
    [
        (cordoned("G1"), ("G2",), cordoned("G1", "G2")),
        (cordoned("G1"), ("G1",), cordoned("G1")),
        (cordoned("G1"), (), cordoned()),
        (cordoned(), ("G2",), cordoned()),
    ],
)
def test_the_second_of_two_operators_frees_nothing_that_the_first_took_out(before, gpus, after):
    """The last message stands for the node: one that names only its own GPU would put the other back into use."""
    assert word(before, *gpus) == after


def test_a_drain_takes_a_cordon_further_and_a_cordon_ends_no_drain():
    """`cordon` on a node that is drained would call the drain off."""
    assert word(cordoned(), drain=True) == cordoned(drain=True)
    assert word(cordoned("G1"), "G1", drain=True) == cordoned("G1", drain=True)
    assert word(cordoned("G1", drain=True), "G1", why="power") == cordoned("G1", why="power", drain=True)


def test_a_drain_never_evicts_a_pod_that_was_not_named():
    """One message is of one kind: draining G2 beside a cordoned G1 would evict the pods on G1."""
    for before in (cordoned("G1"), cordoned()):
        with pytest.raises(CordonError, match="is cordoned already"):
            word(before, "G2", drain=True)
    with pytest.raises(CordonError, match="is being drained"):
        word(cordoned("G1", drain=True), "G2")
    assert word(cordoned("G1"), "G1", "G2", drain=True) == cordoned("G1", "G2", drain=True)


@pytest.mark.parametrize(
    ("before", "gpus", "after"),
    [
        (None, (), msg.Uncordoned(node=NODE)),
        (cordoned("G1", "G2", drain=True), ("G1",), cordoned("G2", drain=True)),
        (cordoned("G1"), ("G1",), msg.Uncordoned(node=NODE)),
        (cordoned("G1"), (), msg.Uncordoned(node=NODE)),
        (cordoned(), (), msg.Uncordoned(node=NODE)),
    ],
)
def test_what_is_uncordoned_is_used_and_the_rest_is_not(before, gpus, after):
    assert cordons.uncordon_word(NODE, before, gpus) == after


def test_one_gpu_of_a_whole_cordon_is_not_guessed():
    """Whether the others stay cordoned is for a person to say."""
    with pytest.raises(CordonError, match="cordoned as a whole"):
        cordons.uncordon_word(NODE, cordoned(), ("G1",))


@pytest.mark.parametrize(
    ("said", "state", "why"),
    [
        ((), "running", ""),
        (("ordered",), "ordered", "drained"),
        (("ordered", "blocked"), "blocked", "budget"),
        (("ordered", "done"), "evicted", "it is terminating within its grace period"),
        (("withdrawn",), "ending", "its pod is gone; its slice is to be destroyed"),
    ],
)
def test_each_pod_is_shown_with_what_holds_it_up(make, said, state, why):
    """An operator who waits for a drain has to know whom to ask."""
    fleet_state = make.fleet_state(ledger=make.grant(), binding=make.bound())
    messages = {
        "ordered": (subjects.eviction, msg.EvictionOrdered(request=make.request, cause="drained")),
        "blocked": (subjects.evicted, msg.EvictionBlocked(request=make.request, why="budget")),
        "done": (subjects.evicted, msg.EvictionDone(request=make.request)),
        "withdrawn": (subjects.request, make.withdrawn()),
    }
    for address, message in (messages[each] for each in said):
        fleet_state.values[address(make.request).subject] = message
    (pod,) = pods_on(fleet_state, NODE, ())
    assert (pod.namespace, pod.name, pod.state, pod.message) == ("default", "train", state, why)


def test_who_is_being_made_or_unmade_is_in_the_way_too(make):
    """The node would be switched off while an instance is there."""
    for entry, gpus, state in ((make.grant(), (GPU,), "granted"), (make.revoke(), (), "ending")):
        assert [pod.state for pod in pods_on(make.fleet_state(ledger=entry), NODE, gpus)] == [state]


def test_neighbours_are_not_in_the_way(make):
    fleet_state = make.fleet_state(ledger=make.grant(msgspec.structs.replace(make.booking(), node="gpu-2")))
    assert pods_on(fleet_state, NODE, ()) == ()
    assert pods_on(make.fleet_state(ledger=make.grant()), NODE, ("GPU-other",)) == ()


async def test_no_connection_waits_for_a_person(make, monkeypatch):
    """The server closes a connection that is silent for minutes, and the answer would be lost with it."""
    open_ones = []

    @contextlib.asynccontextmanager
    async def connected(_url):
        open_ones.append(None)
        yield None
        open_ones.pop()

    async def who_is_there(_bus, _target):
        return (), (DrainedPodDocument(request="p1", namespace="lab", name="a", state="running"),)

    def thinks(question):
        assert question == f"evict 1 pod from {NODE}?"
        assert not open_ones
        return False

    monkeypatch.setattr(cordon, "connected", connected)
    monkeypatch.setattr(cordon, "_who_is_there", who_is_there)
    target = cordon.CordonTarget(NODE)
    assert await cordon.drain("", target, yes=False, wait_s=None, form="", run=RunId("typed"), ask=thinks) == 1


@pytest.mark.parametrize(("target", "wrong"), [(NODE, ""), ("gpu-9", f"there is no node gpu-9; known: {NODE}")])
async def test_a_script_drains_a_node_without_pods_unasked(make, monkeypatch, capsys, target, wrong):
    """`no terminal to confirm on` where there is nothing to confirm, and for a node that does not exist."""
    bus = MemoryBroker().bus("operator")
    await bus.ensure_streams()
    await say(bus, subjects.inventory(make.node), 0, make.inventory(make.gpu_report()))

    @contextlib.asynccontextmanager
    async def connected(_url):
        yield bus

    monkeypatch.setattr(cordon, "connected", connected)
    options = {"yes": False, "wait_s": None, "form": "text", "run": RunId("typed"), "ask": pytest.fail}
    drain = cordon.drain("", cordon.CordonTarget(target), **options)
    if wrong:
        with pytest.raises(NotFoundError, match=wrong):
            await drain
    else:
        assert await drain == 0
        assert capsys.readouterr().out == f"{NODE} is drained\nno pod is there\n"


async def test_a_user_who_stops_waiting_reads_that_the_drain_goes_on(capsys):
    """Ctrl-C would look like the end of the drain, and pods would go on being evicted."""
    waiting = asyncio.create_task(wait_until_left(MemoryBroker().bus("operator"), NODE, (), 30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert capsys.readouterr().err == f"{NODE} is still being drained; `sluice uncordon {NODE}` ends that\n"


def test_a_drain_tells_of_each_pod_what_changed_and_of_the_others_how_many(make, capsys):
    """A node with a hundred pods would print all of them some hundred times, and hide who is left."""

    def there(*states):
        pods = [DrainedPodDocument(request=name, namespace="lab", name=name, state=state) for name, state in states]
        monkey.setattr(cordon, "pods_on", lambda *_: tuple(pods))
        return progress(make.fleet_state()), capsys.readouterr().err

    progress = cordon._Progress(NODE, ())
    with pytest.MonkeyPatch.context() as monkey:
        assert there(("a", "ordered"), ("b", "ordered")) == (
            False,
            "2 pods there:\n  lab/a  ordered\n  lab/b  ordered\n",
        )
        assert there(("a", "ordered"), ("b", "ending")) == (False, "2 pods there:\n  lab/b  ending\n")
        assert there(("a", "ordered"), ("b", "ending")) == (False, "")
        assert there(("a", "ordered")) == (False, "1 pod there\n")
        assert there() == (True, "")  # the answer says so
