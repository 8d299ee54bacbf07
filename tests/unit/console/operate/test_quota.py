"""`sluice quota`: what namespaces have and may have, and the message by which that changes."""

import io

import msgspec
import pytest
from factories.broker.memory_bus import MemoryBroker
from msgspec.structs import replace
from rich.console import Console

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, WriteAccepted, WriteRefused, WriteUnknown
from sluice.contracts.gpu_reports import profile_reports
from sluice.contracts.ids import OperationId, RunId, SourceName
from sluice.contracts.messages import Amounts, QuotaSet, QuotaUnset, Share, SliceDegraded, SliceGone
from sluice.mig.catalog import find_model
from sluice.runtime.bus import BusError
from sluice_console.core.documents import QuotaDocument
from sluice_console.core.operate import quotas
from sluice_console.core.operate.quotas import QuotaChange, QuotaError, check_namespace, quotas_document, unset_word
from sluice_console.shell.operate import guarded_write
from sluice_console.shell.operate.guarded_write import ATTEMPTS_MAX, LastMessage, publish_if_unchanged, update_guarded
from sluice_console.shell.output.printer import show_quotas

RUN = RunId("typed")
SAME = QuotaChange()
WORD = subjects.quota("lab")


def only(fleet_state) -> QuotaDocument:
    (quota,) = quotas_document(fleet_state).quotas
    return quota


def a100(make):
    return make.inventory(make.gpu_report(profiles=profile_reports(find_model("a100-40gb"))))


def quota_word(before, *, take_over=False, priority_max=None, **changes):
    """What is said of lab when only these `changes` are asked for."""
    asked = {"total": SAME, "request": SAME, "guaranteed": SAME} | changes
    return quotas.quota_word("lab", before, **asked, take_over=take_over, priority_max=priority_max)


def shown(fleet_state, namespace: str | None = None) -> str:
    out = io.StringIO()
    show_quotas(Console(file=out, width=160, highlight=False), quotas_document(fleet_state), namespace)
    return out.getvalue()


def test_what_is_being_taken_away_counts_until_its_agent_says_that_it_is_gone(make):
    """The allocator counts so; a person would wonder why no pod is served."""
    fleet_state = make.fleet_state(ledger=make.revoke(), inventory=a100(make))
    assert only(fleet_state).used.gpus == 1
    gone = SliceGone(allocation=make.allocation, request=make.request, revision=2, cause="revoked")
    fleet_state.values[subjects.slice_(make.node, make.allocation).subject] = gone
    assert quotas_document(fleet_state).quotas == ()


@pytest.mark.parametrize(("shrinking", "expected"), [(True, 8000), (False, 2000)])
def test_a_share_that_ails_counts_what_its_agent_says_is_used(make, shrinking, expected):
    """A namespace would seem to have what it has given up, or to have given up what its processes use."""
    whole, *_ = make.grant().booking.devices
    large, small = (
        replace(whole, profile=None, share=Share(mode="mps", uid=0, memory_mib=mib)) for mib in (8000, 2000)
    )
    booking = replace(make.grant().booking, devices=(small,))
    grant = replace(make.grant(), revision=2, booking=booking, counts=(large,))
    fleet_state = make.fleet_state(ledger=grant, inventory=a100(make))
    about = {"allocation": make.allocation, "request": make.request, "revision": 2, "message": "off the bus"}
    word = SliceDegraded(**about, shrinking=shrinking)
    fleet_state.values[subjects.slice_(make.node, make.allocation).subject] = word
    assert only(fleet_state).used.memory_mib == expected


def test_a_namespace_is_shown_with_its_limits_beside_what_it_has(make):
    fleet_state = make.fleet_state(ledger=make.grant(), inventory=a100(make))
    each, sure = Amounts(gpus=1), Amounts(gpus=2)
    total = Amounts(gpus=4, memory_mib=65536)
    said = QuotaSet(namespace="default", total=total, request=each, guaranteed=sure, priority_max=100)
    fleet_state.values[subjects.quota("default").subject] = said
    fleet_state.values[WORD.subject] = QuotaSet(namespace="lab", total=Amounts(compute_slices=0))
    assert [" ".join(line.split()) for line in shown(fleet_state).splitlines()] == [
        "NAMESPACE DEVICES MEMORY COMPUTE SLICES ONE POD GUARANTEED PRIORITY",
        "default 1 of 4 20096 of 65536 MiB 3 1 device 2 devices up to 100",
        "lab 0 0 MiB 0 of 0 - - -",
    ]


def test_nothing_is_said_without_a_holder(make):
    """A sentence instead of an empty table; a quota that was lifted is none."""
    fleet_state = make.fleet_state()
    fleet_state.values[WORD.subject] = QuotaUnset(namespace="lab")
    assert shown(fleet_state) == "no namespace has limits or devices\n"
    assert shown(fleet_state, "lab") == "namespace lab has no limits and no devices\n"


def test_what_is_not_named_stays_as_it_is():
    before = QuotaSet(namespace="lab", total=Amounts(gpus=4, memory_mib=1000), guaranteed=Amounts(gpus=1))
    word = quota_word(before, total=QuotaChange(memory="64Gi"), request=QuotaChange(gpus="2"))
    assert word == QuotaSet(
        namespace="lab", total=Amounts(gpus=4, memory_mib=65536), request=Amounts(gpus=2), guaranteed=Amounts(gpus=1)
    )


def test_zero_is_a_limit_and_unlimited_is_none():
    """tensor-fusion §1.5 (B9): zero means two things there."""
    before = QuotaSet(namespace="lab", total=Amounts(gpus=4, compute_slices=3))
    assert quota_word(before, total=QuotaChange(gpus="0", compute_slices="unlimited")).total == Amounts(gpus=0)


@pytest.mark.parametrize(
    ("text", "mib"), [("65536", 65536), ("64Gi", 65536), ("1.5Gi", 1536), ("1048577", 1048577), ("1100Ki", 1)]
)
def test_memory_is_read_as_in_a_manifest_and_never_rounded_up(text, mib):
    assert quota_word(None, total=QuotaChange(memory=text)).total.memory_mib == mib


@pytest.mark.parametrize(
    ("said", "option"),
    [
        (QuotaChange(gpus="-1"), "--gpus -1"),
        (QuotaChange(gpus="two"), "--gpus two"),
        (QuotaChange(gpus="1.5"), "--gpus 1.5"),
        (QuotaChange(gpus="9999999999"), "--gpus 9999999999: a whole number from 0 to 999999999"),
        (QuotaChange(memory="lots"), "--memory lots"),
        (QuotaChange(memory="160"), "--memory: 160 without a unit is 160 MiB; did you mean 160Gi"),
        (QuotaChange(memory="-1Gi"), "--memory -1Gi"),
        (QuotaChange(compute_slices="x"), "--compute-slices x"),
    ],
)
def test_what_is_no_amount_is_named(said, option):
    """Nothing is written, and the person sees which option it was."""
    with pytest.raises(QuotaError, match=option):
        quota_word(None, total=said)


def test_a_ceiling_of_priorities_is_a_number_and_stays_until_it_is_lifted():
    """Changing another limit would let the namespace evict others again."""
    with pytest.raises(QuotaError, match="--priority-max high: a whole number of 32 bits, or unlimited"):
        quota_word(None, priority_max="high")
    low = quota_word(None, priority_max="-5")
    assert quota_word(low).priority_max == -5
    assert quota_word(low, priority_max="unlimited").priority_max is None


def test_more_than_may_be_had_cannot_be_guaranteed():
    with pytest.raises(QuotaError, match="--guaranteed-gpus 5: namespace lab may have 4 in all"):
        quota_word(None, total=QuotaChange(gpus="4"), guaranteed=QuotaChange(gpus="5"))


def test_what_a_limits_file_says_of_a_namespace_is_changed_there():
    """The file would set it again, and the person who raised a limit would wonder."""
    file = QuotaSet(namespace="lab", total=Amounts(gpus=4), source=SourceName("cluster"))
    sentence = "namespace lab is in the limits file of the pod-watcher 'cluster': change it there"
    with pytest.raises(QuotaError, match=sentence):
        quota_word(file, total=QuotaChange(gpus="5"))
    with pytest.raises(QuotaError, match=sentence):
        unset_word("lab", file)
    assert unset_word("lab", file, take_over=True) == QuotaUnset(namespace="lab")
    taken = quota_word(file, total=QuotaChange(memory="1Gi"), take_over=True)
    assert taken == QuotaSet(namespace="lab", total=Amounts(gpus=4, memory_mib=1024))
    lifted = QuotaUnset(namespace="lab", source=SourceName("cluster"))
    assert quota_word(lifted, total=QuotaChange(gpus="5")).total.gpus == 5


@pytest.mark.parametrize("name", ["", "Lab", "a.b", "-a", "a-", "a_b", "ä", "x" * 64])
def test_a_name_that_no_namespace_has_is_refused(name):
    with pytest.raises(QuotaError, match="is no namespace"):
        check_namespace(name)


def word(gpus: int) -> QuotaSet:
    return QuotaSet(namespace="lab", total=Amounts(gpus=gpus))


class Faulty:
    """A bus that fails writes on purpose before or after they land."""

    def __init__(self, bus, *faults: str) -> None:
        """One fault for each write, in their order; later writes succeed."""
        self.bus, self.faults, self.writes = bus, list(faults), 0
        self.last = bus.last

    async def write(self, write, headers):
        self.writes += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "lost":
            return WriteUnknown(write.operation)
        if fault == "other first":
            await update_guarded(self.bus, WORD, lambda _: word(9), run=RunId("other"))
        answer = await self.bus.write(write, headers)
        assert isinstance(answer, WriteAccepted | WriteRefused)
        return WriteUnknown(write.operation) if fault == "answer lost" else answer


async def published(bus) -> bool:
    """Whether the first message of all was this one."""
    options = {"operation": OperationId("typed-0"), "ttl_s": None}
    return await publish_if_unchanged(bus, WORD, LastMessage(0, None), word(4), **options)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


async def test_a_word_is_said_once_and_not_again(broker):
    """Publishing the same again would wake every reader for nothing."""
    bus = Faulty(broker.bus("a"))
    assert await update_guarded(bus, WORD, lambda _: word(4), run=RUN) == word(4)
    assert await update_guarded(bus, WORD, lambda _: word(4), run=RUN) == word(4)
    assert bus.writes == 1
    assert (await bus.last(Stream.BOOK, WORD.subject)).message == word(4)


async def test_the_other_of_two_operators_is_not_overwritten(broker):
    """Both change another limit at the same moment: the later one is computed again from the earlier one."""

    def more(last):
        total = msgspec.structs.replace(last.total, memory_mib=1) if last is not None else Amounts(memory_mib=1)
        return QuotaSet(namespace="lab", total=total)

    said = await update_guarded(Faulty(broker.bus("a"), "other first"), WORD, more, run=RUN)
    assert said == QuotaSet(namespace="lab", total=Amounts(gpus=9, memory_mib=1))


@pytest.mark.parametrize("fault", ["lost", "answer lost"])
async def test_a_word_without_an_answer_is_sent_again_and_lands_once(broker, fault):
    bus = Faulty(broker.bus("a"), fault)
    assert await update_guarded(bus, WORD, lambda _: word(4), run=RUN) == word(4)
    first = await bus.last(Stream.BOOK, WORD.subject)
    assert (first.message, first.operation, bus.writes) == (word(4), f"{RUN}-0", 2)


async def test_a_bus_that_never_answers_ends_in_a_sentence(broker):
    bus = Faulty(broker.bus("a"), *["lost"] * ATTEMPTS_MAX)
    with pytest.raises(BusError, match="whether it was written is unknown"):
        await update_guarded(bus, WORD, lambda _: word(4), run=RUN)
    assert bus.writes == ATTEMPTS_MAX


async def test_a_server_that_lags_does_not_make_an_own_message_foreign(broker):
    """The person would read that nothing was written, or that a node that is being removed keeps what it has."""
    bus = Faulty(broker.bus("a"), "answer lost")
    shown = iter([TimeoutError(), None])

    async def lagging(stream, subject):
        match next(shown, "all of it"):
            case TimeoutError() as away:
                raise away
            case None:
                return None
        return await bus.bus.last(stream, subject)

    bus.last = lagging
    assert await published(bus)
    assert bus.writes == 2


async def test_a_server_that_goes_on_lagging_ends_in_a_sentence(broker, monkeypatch):
    monkeypatch.setattr(guarded_write, "LOOK_AGAIN_S", 0.0)
    bus = Faulty(broker.bus("a"), "answer lost")

    async def lagging(_stream, _subject):
        return None

    bus.last = lagging
    with pytest.raises(BusError, match="whether it was written is unknown"):
        await published(bus)
