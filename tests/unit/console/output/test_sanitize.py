"""What others wrote is shown on a terminal, and not obeyed by it."""

import io
import re

import msgspec
import pytest
from factories.console import heard, usage_of
from rich.console import Console

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.ids import NodeName
from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.messages import RequestRejected
from sluice.contracts.request_syntax import RequestLimits
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.bus import BusError
from sluice_console.core import documents as doc
from sluice_console.core.doctor.findings import Check, DoctorDocument, warning
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.fleet.usage import usages_document
from sluice_console.core.history.events import event_document
from sluice_console.core.history.sentences import RequestNames
from sluice_console.core.history.waterfall import PartDocument, SpanDocument, WaterfallDocument
from sluice_console.core.operate.quotas import quotas_document
from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.cli_options import run
from sluice_console.shell.doctor import doctor
from sluice_console.shell.errors import CommandError
from sluice_console.shell.inspect import trace
from sluice_console.shell.inspect.look_up import event_line
from sluice_console.shell.inspect.views import FleetView
from sluice_console.shell.operate import cordon
from sluice_console.shell.output import printer
from sluice_console.shell.run.progress import RunProgress

EVIL = "x\x1b]52;c;aGk=\x07\x1b[2J\x9b1m\r\nforged\u202e"
"""Fills the clipboard, wipes the screen, is bold, and begins a line of its own."""
SHOWN = r"x\x1b]52;c;aGk=\x07\x1b[2J\x9b1m\r\nforged\u202e"
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|^forged", re.MULTILINE)
MANIFEST = r"""
apiVersion: v1
kind: Pod
metadata: {name: train, annotations: {"sluice.dev/\e]52;c;aGk=\a\e[2J\nforged": "1"}}
spec: {containers: [{name: main}]}
"""


def check(text: str, shown: str = SHOWN) -> None:
    """Nothing in it is obeyed, and what was written can be read."""
    assert OBEYED.search(text) is None, repr(text)
    assert shown in text, repr(text)


def printed(show, *more, **options) -> str:
    """What is printed for people in lines that are long enough."""
    text = io.StringIO()
    show(Console(file=text, width=2000, highlight=False), *more, **options)
    return text.getvalue()


def test_a_key_of_a_manifest_does_not_reach_the_terminal(make):
    """The author of a manifest would write into the clipboard of a user who looks why it is refused."""
    (pod,) = read_manifests("a.yaml", MANIFEST, limits=ManifestLimits(), asks=RequestLimits())
    rejected = RequestRejected(revision=1, source=make.source, origin="a.yaml", name="train", refusal=pod.refusal)
    fleet_state = make.fleet_state(request=rejected)
    shown = r"sluice.dev/\x1b]52;c;aGk=\x07\x1b[2J\nforged"
    for wide, readable in ((False, shown), (True, "")):
        check(printed(FleetView("pods").show, pods_document(fleet_state), fleet_state, wide=wide), readable)
    story = doc.StoryDocument(pod=pods_document(fleet_state).pods[0], steps=())
    check(printed(printer.show_story, story), shown)
    said = heard(f"request.{make.request}", rejected, make.request)
    check(event_line(event_document(said.subject, said.envelope, RequestNames())), shown)
    check(event_line(event_document("hist.sluice.node.a", Undecodable(EVIL), RequestNames())))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("view", ["gpus", "pods", "nodes"])
def test_no_view_of_the_fleet_obeys_what_an_agent_or_a_pod_says(make, view, wide):
    """`sluice top`, too, draws these; a taken-over agent would draw over all others."""
    booking = msgspec.structs.replace(make.booking(), namespace=EVIL, name=EVIL)
    report = make.gpu_report(
        instances=(msgspec.structs.replace(make.made(), profile=EVIL),), healthy=False, health_message=EVIL
    )
    inventory = make.inventory(report, make.slice(booking), stale=True, warnings=(EVIL,), driver_version=EVIL)
    inventory = msgspec.structs.replace(inventory, stale_message=EVIL)
    words = {"request": make.asked(namespace=EVIL, name=EVIL), "ledger": make.grant(booking), "inventory": inventory}
    fleet_state = make.fleet_state(**words, head=make.opened(), node=make.changed())
    looked = FleetView(view)
    text = printed(looked.show, looked.document(fleet_state, {make.node: EVIL}), fleet_state, wide=wide)
    check(text, SHOWN if view != "nodes" or wide else "")
    bars = [line for line in text.splitlines() if line.startswith("    [")]
    assert all(len(bar) == len("    []") + 8 * 8 - 1 for bar in bars)


def test_no_story_obeys_what_it_tells(make):
    """Steps, causes, reasons and warnings hold what others said."""
    pod = msgspec.structs.replace(
        pods_document(make.fleet_state(request=make.asked())).pods[0], message=EVIL, warnings=(EVIL,), name=EVIL
    )
    step = doc.StepDocument(time=EVIL, subject="", type="", text=EVIL)
    earlier = doc.EarlierDocument(request=EVIL, cause=EVIL)
    text = printed(printer.show_story, doc.StoryDocument(pod=pod, earlier=earlier, steps=(step,)))
    check(text)
    assert len(text.splitlines()) == 5


def test_nothing_else_that_is_printed_is_obeyed(make, capsys, monkeypatch):
    """Quotas, usage, traces, simulations, drains, the doctor: each holds names that others chose."""
    monkeypatch.setattr(printer, "PIPE_WIDTH", 2000)
    monkeypatch.setattr(trace, "PIPE_WIDTH", 300)
    booking = msgspec.structs.replace(make.booking(), namespace=EVIL)
    fleet_state = make.fleet_state(ledger=make.grant(booking))
    check(printed(printer.show_quotas, quotas_document(fleet_state)))
    simulated = doc.SimulatedPodDocument(namespace="n", name="p", origin="o", answer="refused", message=EVIL)
    check(printed(printer.show_simulated, doc.SimulatedDocument(pods=(simulated,))))
    node = NodeName("n")
    usages = usages_document({node: NodeUsage(node=node, every_s=30.0, slices=(usage_of(name=EVIL),))}, {})
    check(printed(printer.show_usage, usages, None))
    span = SpanDocument(name=EVIL, kind="step", service=EVIL, began_ms=0.0, took_ms=1.0)
    part = PartDocument(part="request", trace_id=EVIL, began=EVIL, took_ms=1.0, spans=(span,))
    trace.show(WaterfallDocument(request=EVIL, namespace="n", name=EVIL, state="bound", parts=(part,)))
    check(capsys.readouterr().out)
    there = doc.DrainedPodDocument(request="r", namespace="n", name=EVIL, state="blocked", message=EVIL)
    cordon._show(doc.CordonDocument(node="n", cordoned=True, drain=True, why=EVIL, pods=(there,)))
    check(capsys.readouterr().out)
    doctor._show(DoctorDocument(findings=(warning(Check.BROKER, EVIL, EVIL),)))
    check(capsys.readouterr().out)


@pytest.mark.parametrize("error", [BusError(EVIL), CommandError(EVIL)])
def test_no_failure_is_obeyed(capsys, error):
    """A sentence about what could not be done often repeats what was there."""

    async def fail():
        raise error

    assert run(fail()) == 1
    check(capsys.readouterr().err)


def test_progress_is_shown_and_not_obeyed(capsys):
    """While `sluice run` waits it repeats the allocator's sentences; `drain` names pods."""
    printer.say([EVIL])
    check(capsys.readouterr().err)
    RunProgress(on_terminal=False).progress(EVIL)
    RunProgress(on_terminal=False).failure(EVIL)
    check(capsys.readouterr().err)
    monitor = RunProgress(on_terminal=True)
    monitor.progress(EVIL)
    said = capsys.readouterr().err.removeprefix("\r\x1b[K")
    check(said, r"x\x1b]52;c;aGk=\x07\x1b[2J")


def test_what_is_harmless_is_left_alone():
    """Names in any script, and a backslash that a user wrote."""
    for text in ("", "team-ä/训练 …", r"a\nb"):
        assert sanitize(text) == text
