"""`sluice explain REQUEST`: which request a person means. `sluice events`: one line each."""

import asyncio

import msgspec
import pytest
from factories.broker.bus_rigs import broker_and_bus, ensured, say
from factories.console import heard, pod_of
from factories.waiting import until

from sluice.contracts.bus import subjects
from sluice.contracts.bus.codec import Undecodable
from sluice_console.core.documents import PodsDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.history.events import EventDocument, event_document
from sluice_console.core.history.sentences import RequestNames
from sluice_console.shell.inspect import look_up, trace
from sluice_console.shell.inspect.look_up import event_line, matching, with_past
from sluice_console.shell.inspect.watch import watch_story
from sluice_console.shell.output.answer import once


def pod(request, **fields):
    return pod_of(request, **({"origin": "jobs/train.yaml"} | fields))


async def none(*_):
    return None


@pytest.mark.parametrize(
    "wanted", ["r1", "train", "default/train", "jobs/train.yaml", "train.yaml", "./pods/jobs/train.yaml"]
)
def test_a_pod_is_found_by_whatever_a_person_knows_of_it(wanted):
    """Its id, its name, its file as the shell completes it."""
    others = [pod("r2", name="other", origin="other.yaml")]
    assert [found.request for found in matching([pod("r1"), *others], wanted)] == ["r1"]


@pytest.mark.parametrize("wanted", ["team-b/train", "team-b/jobs/train.yaml", "other/train.yaml", "."])
def test_a_foreign_pod_is_never_taken_for_the_one_that_was_named(wanted):
    """Else `sluice adjust team-b/train` would change the share of team-a, where there is no such pod in team-b."""
    of_a_cluster = pod("r1", origin="team-a/train", namespace="team-a", source="cluster")
    assert matching([of_a_cluster, pod("r2", name="server", origin="team-a/jobs/train.yaml")], wanted) == []


def test_the_living_one_is_meant_when_an_older_one_had_the_same_name():
    assert [found.request for found in matching([pod("r1", state="ended"), pod("r2")], "train")] == ["r2"]


def test_of_pods_that_have_ended_the_newest_one_is_explained(make):
    """Not the one of last week, of which only the history knows, and not whichever id comes last."""
    requests = ("last-week", "z-an-hour-ago", "a-just-now")
    history = [heard(f"request.{request}", make.asked(), request) for request in requests]
    (found,) = with_past(PodsDocument(pods=()), history[:1])
    assert (found.request, found.name, found.state) == ("last-week", "train", "ended"), "when it is the only one"
    withdrawn = [pod(request, name="", state="ended", origin="") for request in ("a-just-now", "z-an-hour-ago")]
    pods = with_past(PodsDocument(pods=tuple(withdrawn)), history)
    assert [found.request for found in matching(pods, "train")] == ["a-just-now"]


@pytest.mark.parametrize("command", [look_up.explain, trace.trace])
async def test_several_pods_are_a_document_a_line_for_programs(command, monkeypatch, capsys):
    """A file with two pods: two documents over many lines are no JSON that a program reads."""
    for module in (look_up, trace):
        monkeypatch.setattr(module, "pods_document", lambda *_, **__: PodsDocument(pods=(pod("r1"), pod("r2"))))
    monkeypatch.setattr(look_up, "_standing", none)
    assert await once(command("", "train", FleetState(), []), "json") == 0
    told = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [each.get("request") or each["pod"]["request"] for each in told] == ["r1", "r2"]
    assert await once(command("", "r1", FleetState(), []), "json") == 0
    assert capsys.readouterr().out.startswith("{\n")


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ({"has": "bound", "old": "waiting", "new": "making"}, ["new", "old"]),
        ({"old": "bound", "new": "bound"}, ["new", "old"]),
        ({f"p{number:02}": "waiting" for number in range(21)}, [f"p{number:02}" for number in range(20, 0, -1)]),
        ({}, []),
    ],
    ids=["those that wait", "else those with a slice", "no more than a screen", "none"],
)
async def test_who_names_no_pod_is_shown_those_that_can_be_explained(monkeypatch, capsys, states, shown):
    """The latest waiting one is what most people came for; an error names an option that is new to them."""
    pods = tuple(
        pod(name, name=name, state=state, asked_at=f"2026-01-02T03:04:{second:02}+00:00")
        for second, (name, state) in enumerate(states.items())
    )
    monkeypatch.setattr(look_up, "pods_document", lambda *_: PodsDocument(pods=pods))
    monkeypatch.setattr(look_up, "fleet_state_at", none)
    assert await once(look_up.choices("", "explain", "json"), "json") == 0
    assert [each["name"] for each in msgspec.json.decode(capsys.readouterr().out)["pods"]] == shown
    assert await once(look_up.choices("", "explain", "text"), "text") == 0
    out, err = capsys.readouterr()
    assert [row.split()[0] for row in out.splitlines()[1:]] == [f"default/{name}" for name in shown]
    assert "`sluice explain NAMESPACE/NAME` for one" in err
    assert ("1 more: `sluice pods`" in err) is (len(states) > 20)


def test_an_event_names_the_pod_and_says_what_happened(make):
    asked = heard(f"request.{make.request}", make.asked(), make.request, time="2026-01-02T03:04:05.678901+00:00")
    event = event_document(asked.subject, asked.envelope, RequestNames())
    assert event == EventDocument(
        time=asked.envelope.time, subject=asked.subject, noun="request", word="AllocationRequested",
        request=make.request, about="default/train", says="asks for 3g.20gb, in train.yaml",
    )  # fmt: skip
    assert event_line(event) == "2026-01-02 03:04:05.678  request    default/train  asks for 3g.20gb, in train.yaml\n"


def test_bytes_that_cannot_be_read_are_a_line_too():
    event = event_document("hist.sluice.node.a", Undecodable("not JSON"), RequestNames())
    assert (event.word, event.unreadable) == ("", "not JSON")
    assert event_line(event).endswith("hist.sluice.node.a: cannot be read: not JSON\n")
    assert event_document("hist.others.node.a", Undecodable("not JSON"), RequestNames()) is None


async def test_a_story_goes_on_after_its_broker_was_away(make, tmp_path, capsys):
    """Lists do; and a person who waits for a pod would not learn that it has its slice."""
    told = []

    def last(state):
        lines = capsys.readouterr().out.splitlines()
        told.extend(msgspec.json.decode(line) for line in lines if line.startswith("{"))  # others log
        return told and told[-1]["state"] == state and told[-1]

    async with broker_and_bus(tmp_path) as (broker, bus):
        await say(bus, subjects.request(make.request), 0, make.asked(), request=make.request)
        watching = asyncio.create_task(watch_story(broker.url, "train", trace.trace, "json"))
        try:
            await until(lambda: last("requested"))
            (server,) = broker.servers
            await server.kill()
            await asyncio.sleep(0.5)
            await server.start()
            await ensured(bus)
            await say(bus, subjects.binding(make.request), 0, make.bound(), request=make.request)
            await until(lambda: (found := last("bound")) and "Bound" in str(found["parts"]))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
