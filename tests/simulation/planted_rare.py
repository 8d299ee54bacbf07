"""Bugs that took thousands of seeds to be found: only the plans that are kept in `kept/` show them."""

import dataclasses
from typing import Any

from msgspec.structs import replace
from simulation.planting import Planted

from sluice.contracts.exchange import Stream
from sluice.contracts.messages import Bound, Waived
from sluice.contracts.outbox import Outbox
from sluice_allocator.core import ended, held, nodes, standing
from sluice_allocator.core import requests as settling_one
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.groups import settling
from sluice_allocator.core.orphans import Orphans
from sluice_allocator.core.waiting import promised
from sluice_allocator.core.world import World
from sluice_node_agent.core import adjusting, agent, homes, witnesses
from sluice_node_agent.core.devices import Devices
from sluice_node_agent.core.records import HomeRecord, NodeRecord, SliceRecord
from sluice_pod_watcher.core.cluster import requests
from sluice_pod_watcher.core.cluster.api_side import ApiSide
from sluice_pod_watcher.core.cluster.records import Record
from sluice_pod_watcher.core.cluster.requests import Requests


def _only_what_is_there_is_looked_at(original: Any) -> Any:
    def look(self: Any, desk: Any, allocation: Any) -> None:
        """What was found without a request stays so while nobody works."""
        if allocation in desk.world.ledger:
            original(self, desk, allocation)

    return look


def _only_answers_are_asked_for(_original: Any) -> Any:
    def asked(self: Any, desk: Any, request: Any) -> None:
        """Of a request that is heard, only what it was answered is looked at."""
        self.look_at_answer(desk, request)

    return asked


def _nothing_is_found(_original: Any) -> Any:
    def is_found_instead(_desk: Any, _allocation: Any, _binding: Any) -> bool:
        """What a binding names that is gone, its pod had, whatever else is there."""
        return False

    return is_found_instead


def _a_removed_node_has_nothing(original: Any) -> Any:
    def is_unbooked(desk: Any, request: Any, allocation: Any, node: Any) -> bool:
        """Once a removed agent has had its time, by this process's clock, nothing of it is asked for."""
        return not desk.removals.is_over(node) and bool(original(desk, request, allocation, node))

    return is_unbooked


def _what_no_reading_shows_is_lost(original: Any) -> Any:
    def catch_up(self: Any, stream: Any, still_there: Any) -> Any:
        """Also of a binding that is newer than all that was read."""
        gone = original(self, stream, still_there)
        if stream is Stream.BOOK:
            bound = [each for each in self.bindings.values() if isinstance(each, Bound)]
            self.lost = {each.allocation: None for each in bound if each.allocation not in self.ledger}
        return gone

    return catch_up


def _an_unanswered_patch_is_none(_original: Any) -> Any:
    return property(lambda _record: False)


def _who_has_ended_had_nothing(original: Any) -> Any:
    def held_by(view: Any) -> Any:
        """Only who runs tells what he has."""
        return None if view.has_ended else original(view)

    return held_by


def _an_end_tells_of_nothing(original: Any) -> Any:
    def heard_end(self: Any, record: Any, uid: Any, word: Any, now: float) -> Any:
        """What another pod-watcher says that a pod had is not taken over."""
        return original(self, record, uid, word if record is None else replace(word, held=None), now)

    return heard_end


def _none_of_ours(_original: Any) -> Any:
    def other_seen(_self: Any, _raw: Any, _now: float) -> None:
        """Only who has our label is looked at."""

    return other_seen


def _whatever_was_pulled_counts(original: Any) -> Any:
    def may_open(desk: Any, node: Any, inventory: Any) -> bool:
        """Nobody asks in which life of the broker's data a node was pulled."""
        return bool(original(desk, node, replace(inventory, incarnation="")))

    return may_open


def _closed_once_and_for_all(original: Any) -> Any:
    def heard(self: Any, uid: Any, word: Any, now: float) -> Any:
        """Of a request that was closed nothing more has to be said, whatever the bus says."""
        record = self.records.get(uid)
        return None if record is not None and record.closed else original(self, uid, word, now)

    return heard


def _source_knows_all(original: Any) -> Any:
    def waits_for_node(desk: Any, request: Any, _held: Any) -> Any:
        """A pod has what its source remembers, and never what a binding says that landed after a wipe."""
        return original(desk, request, getattr(desk.world.requests.get(request), "held", None))

    return waits_for_node


def _a_silent_source_has_nothing(original: Any) -> Any:
    def answer_without_slice(desk: Any, request: Any) -> Any:
        """Who has not spoken in this life of the bus has no other slice than the one that a late binding names."""
        answer = original(desk, request)
        return None if isinstance(answer, Bound) else answer

    return answer_without_slice


def _bound_once_for_all(_original: Any) -> Any:
    """What is bound last is what a pod has, for it is bound once."""
    return lambda _bound, _held: True


def _of_another_life_is_nothing(original: Any) -> Any:
    def answer(self: Any, message: Any) -> Any:
        """What was waived in another life of the bus says nothing, so it need not be known."""
        is_older = isinstance(message, Waived) and message.incarnation not in {"", self.incarnation}
        return None if is_older else original(self, message)

    return answer


def _operators_words_alone(original: Any) -> Any:
    def is_beyond(self: Any, address: Any, ends_at: int) -> bool:
        """What a request was answered is gone when a reading does not show it."""
        return address.kind != "binding" and bool(original(self, address, ends_at))

    return is_beyond


def _every_reading_is_the_newest(_original: Any) -> Any:
    def is_beyond(_self: Any, _address: Any, _ends_at: int) -> bool:
        """What a reading does not show is not there."""
        return False

    return is_beyond


def _opened_before_it_is_closed(_original: Any) -> Any:
    def is_to_be_closed(_desk: Any, _node: Any) -> bool:
        """What is gone can be closed at any time."""
        return False

    return is_to_be_closed


def _whatever_is_booked_is_told(original: Any) -> Any:
    def is_missing(desk: Any, report: Any) -> bool:
        """What the ledger has is ordered, in whatever life of the bus that was."""
        return report.booking.allocation not in desk.world.ledger and original(desk, report)

    return is_missing


def _marks_say_nothing(_original: Any) -> Any:
    def may_be_ours(_self: Any, _place: Any) -> bool:
        """As where marks are not whole: what stands at a granted place is the grant's."""
        return True

    return may_be_ours


def _everybody_in_it_is_known(original: Any) -> Any:
    def home_of(*args: Any) -> Any:
        """The tickets tell of all who are in a home that is taken over."""
        home = original(*args)
        return replace(home, inherited=False) if isinstance(home, HomeRecord) else home

    return home_of


def _known_once_for_all(original: Any) -> Any:
    def what_was_found(event: Any, *args: Any) -> Any:
        """A GPU that was seen once after the journal was lost is known, whether it answers or not."""
        found = original(event, *args)
        before = next((record for record in event.records if isinstance(record, NodeRecord)), None)
        if before is not None and not event.journal_problem:
            found.unseen = {gpu: None for gpu in found.unseen if gpu in before.unseen}
        return found

    return what_was_found


def _in_its_ticket_for_ever(original: Any) -> Any:
    def next_step(work: Any, *args: Any) -> Any:
        """What a smaller share counted stays in its ticket when it counts no more."""
        before, step = work.record.adjusting, original(work, *args)
        is_over = isinstance(step, SliceRecord) and before is not None and before.counts
        return replace(step, adjusting=None) if is_over and step.adjusting and not step.adjusting.counts else step

    return next_step


def _only_what_is_bound_lands_late(original: Any) -> Any:
    def landed_late(desk: Any, request: Any, asked: Any, binding: Any) -> bool:
        """A request that was closed has no answer, for it was released before."""
        return isinstance(binding, Bound) and bool(original(desk, request, asked, binding))

    return landed_late


def _no_container_comes_back(original: Any) -> Any:
    def to_unmake(home: Any, wish: Any, devices: Any, token: int) -> Any:
        """Of an earlier boot no ticket is left that anybody could be let in with."""
        return original(home, dataclasses.replace(wish, lets_in=False), devices, token)

    return to_unmake


def _only_the_own_change_counts(original: Any) -> Any:
    def counted(self: Any, entry: Any) -> Any:
        """What is on its way from here is larger than what anybody else may have made of it."""
        on_its_way = self.adjustments.on_their_way.get(entry.booking.allocation)
        return original(self, entry) if on_its_way is None else on_its_way.adjusted.counted

    return counted


def _an_answer_is_the_last_word(original: Any) -> Any:
    def last_read(self: Any, event: Any) -> Any:
        """What a reading shows is there now, also where an own write was accepted since it was asked for."""
        lane = self._lanes.get(event.subject)
        wanted = dict(lane.dirty) if lane is not None else {}
        reports = original(self, event)
        if lane is not None:
            lane.dirty = wanted
        return reports

    return last_read


def _whoever_asks_says_all(original: Any) -> Any:
    def member_of_group(desk: Any, request: Any) -> Any:
        """A pod that asks without what it has, has nothing, in whatever life of the bus that was said."""
        member = original(desk, request)
        return dataclasses.replace(member, adopted_for=None) if member is not None else None

    return member_of_group


def left_with_what_is_taken_back(_original: Any) -> Any:
    """Whoever loses his slice has been told so by his source."""
    return lambda _desk, _request: None


OPENED_BEFORE_IT_IS_CLOSED = Planted(
    "opened before what is gone is closed",
    "an instance that an administrator has made by hand, on a node whose marks are not whole",
    ("I13",),
    ((nodes, "_is_to_be_closed", _opened_before_it_is_closed), (Devices, "may_be_ours", _marks_say_nothing)),
)
"""`test_unread` has a schedule of it."""

RARE_BUGS = (
    Planted(
        "closed once and for all",
        "a request's end: it stays on the bus for ever",
        ("I3",),
        ((Requests, "heard", _closed_once_and_for_all),),
    ),
    Planted(
        "its source knows what it is bound to",
        "the slice of a pod that is gone: it is said to be over while it is there",
        ("LAW 3",),
        (
            (ended, "waits_for_node", _source_knows_all),
            (ended, "answer_without_slice", _a_silent_source_has_nothing),
        ),
    ),
    Planted(
        "a late binding counts",
        "the slice that it runs on: what was bound before the broker was wiped, and landed after that, takes its place",
        ("LAW 3", "undisturbed"),
        ((Bound, "is_for", _bound_once_for_all),),
    ),
    Planted(
        "a waiver of another life is not there",
        "a request's end: it stays on the bus for ever",
        ("I3",),
        ((World, "_answer", _of_another_life_is_nothing),),
    ),
    Planted(
        "every reading is the newest",
        "the pods that come to a node which its operator has just taken out of use",
        ("cordoned",),
        ((World, "_is_beyond", _every_reading_is_the_newest),),
    ),
    Planted(
        "answers are as old as the reading",
        "a slice, made for nobody: its request was released, and a server that lags shows it as it was before",
        ("taken until settled",),
        ((World, "_is_beyond", _operators_words_alone),),
    ),
    OPENED_BEFORE_IT_IS_CLOSED,
    Planted(
        "what stands at a granted place is the grant's",
        "its devices: an administrator takes away what he made by hand",
        ("I4",),
        ((Devices, "may_be_ours", _marks_say_nothing),),
    ),
    Planted(
        "tickets name all who are in a home",
        "a part of its GPU: a process that nobody knows of still computes there, after journal and ledger were lost",
        ("I1",),
        ((witnesses, "_home_of", _everybody_in_it_is_known),),
    ),
    Planted(
        "a GPU that was seen once is known",
        "its slice, said to be gone while it is there: its GPU is silent when the next life of its agent begins",
        ("LAW 3",),
        ((agent, "what_was_found", _known_once_for_all),),
    ),
    Planted(
        "a ticket tells for ever what counted once",
        "the memory that a share was made smaller by: after a lost journal it counts again, as long as its pod runs",
        ("I4",),
        ((adjusting, "next_step", _in_its_ticket_for_ever),),
    ),
    Planted(
        "an answer is older than the end of its request",
        "a request's end: a waiver that landed when all was over stays on the bus for ever",
        ("I3",),
        ((ended, "_landed_late", _only_what_is_bound_lands_late),),
    ),
    Planted(
        "no container comes back after a reboot",
        "half of its GPU's time and memory: the home goes while a ticket that cannot be removed lets containers in",
        ("MPS",),
        ((homes, "_to_unmake", _no_container_comes_back),),
    ),
    Planted(
        "only the own change of a share counts",
        "memory that it was granted: another allocator has made its neighbour larger meanwhile",
        ("I2",),
        ((Desk, "counted", _only_the_own_change_counts),),
    ),
    Planted(
        "an answer is the last word",
        "a warning: its agent takes an older word of its own for the last one, and thinks that it is told",
        ("time",),
        ((Outbox, "_last_read", _an_answer_is_the_last_word),),
    ),
    Planted(
        "whoever asks says all that it has",
        "the slice of a job that runs: its pods' words were lost after a wipe, but for an old one",
        ("undisturbed",),
        ((settling, "member_of_group", _whoever_asks_says_all),),
    ),
    Planted(
        "everybody knows what he has lost",
        "any answer, for ever: it runs on what is being taken back from it",
        ("I4",),
        ((promised, "why_taken_back", left_with_what_is_taken_back),),
    ),
    Planted(
        "an order of another life stands",
        "the slice that it runs on, after the broker was wiped while a write was without its answer",
        ("undisturbed",),
        ((nodes, "_is_missing", _whatever_is_booked_is_told),),
    ),
    Planted(
        "without our label it is none of ours",
        "its slice: somebody took its label away, and the bus forgot its request",
        ("undisturbed",),
        ((ApiSide, "other_seen", _none_of_ours),),
    ),
    Planted(
        "what was told to who stood by counts for ever",
        "its slice: the broker was wiped twice, and who takes over counts what its source told in between",
        ("undisturbed",),
        (
            (Orphans, "look", _only_what_is_there_is_looked_at),
            (Orphans, "asked", _only_answers_are_asked_for),
        ),
    ),
    Planted(
        "nothing is found where a binding names what is gone",
        "the slice that it runs on: binding and ask of before a wipe landed after it, and name one that was surplus",
        ("LAW 3", "undisturbed"),
        ((standing, "is_found_instead", _nothing_is_found), (settling_one, "is_found_instead", _nothing_is_found)),
    ),
    Planted(
        "a removed node that no ledger knows has nothing",
        "its slice: its node is back, and who reads late has it released, with nothing on the bus that would refuse it",
        ("LAW 3",),
        ((held, "_is_unbooked", _a_removed_node_has_nothing),),
    ),
    Planted(
        "what no reading shows is lost",
        "its slice: a server that lagged shows neither grant nor binding, of which only the binding is known still",
        ("LAW 3", "undisturbed"),
        ((World, "catch_up", _what_no_reading_shows_is_lost),),
    ),
    Planted(
        "an unanswered patch binds nobody",
        "the slice that it runs on, for another one: the bus was wiped before the answer of the API server came",
        ("bound once", "undisturbed", "cluster"),
        ((Record, "is_in_the_balance", _an_unanswered_patch_is_none),),
    ),
    Planted(
        "who has ended had nothing",
        "the order of things: its request is released before its slice, on a node that does not answer, is gone",
        ("LAW 3",),
        (
            (requests, "held_by", _who_has_ended_had_nothing),
            (Requests, "_heard_end", _an_end_tells_of_nothing),
        ),
    ),
    Planted(
        "whatever was pulled opens its node",
        "the slice that it runs on: an empty picture of its node, of before a wipe, landed after it",
        ("I1",),
        ((nodes, "_may_open", _whatever_was_pulled_counts),),
    ),
)
