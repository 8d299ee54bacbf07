"""
What the agent says: the word of every slice, kept on the bus, and how the whole node is.

It derives and repeats; it must not change what it tells of.
"""

from sluice.contracts import subjects
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice.contracts.messages import Closed, PlacementReport, SliceGone
from sluice.contracts.outbox import Outbox
from sluice_node_agent.core.devices import Seen
from sluice_node_agent.core.floor import Floor
from sluice_node_agent.core.found import Found
from sluice_node_agent.core.graves import Graves
from sluice_node_agent.core.housing import Housing
from sluice_node_agent.core.news import News
from sluice_node_agent.core.records import NodeRecord
from sluice_node_agent.core.sending import Sender
from sluice_node_agent.core.warm import WarmOnes
from sluice_node_agent.core.words import report_of, stuck_on, word_of
from sluice_node_agent.core.work import HomeKey, Work, pairs


class Telling:
    """The agent's voice: the outbox of its bus, and the snapshot for whoever pulls."""

    def __init__(self, node: NodeName, outbox: Outbox, news: News, graves: Graves, floor: Floor) -> None:
        """Begin with nothing said."""
        self._node = node
        self._rules = news.rules
        self._outbox = outbox
        self._news = news
        self._graves = graves
        self._floor = floor

    def say(self, work: Work) -> None:
        """Keep the word of a slice on the bus. What is not in the journal yet is not said."""
        if work.saving:
            return
        address = subjects.slice_(self._node, work.allocation)
        word = word_of(work, self._floor, self._rules)
        if word is None:
            self._outbox.forget(address)
        else:
            self._outbox.keep(address, word, request=word.request)

    def say_home(self, key: HomeKey) -> None:
        """Something about a home may have to be said of all who live there."""
        for work, _, _ in self._floor.tenants(key):
            self.say(work)

    def say_gone(self, allocation: AllocationId, now: float, *, is_closed: bool) -> None:
        """The last word of a slice: for good, or until everybody has heard it (`is_closed`)."""
        word = self._graves.word(allocation, closed=is_closed, now=now)
        if word is not None:
            gone, ttl_s = word
            self._outbox.keep(subjects.slice_(self._node, allocation), gone, request=gone.request, ttl_s=ttl_s)

    def say_closed(self, closed: Closed) -> None:
        """Closed, and we remember nothing of it: what may still be said of it on the bus must not stay for ever."""
        gone = SliceGone(
            allocation=closed.allocation,
            request=closed.request,
            revision=closed.revision,
            cause=closed.cause,
            closing=True,
        )
        address = subjects.slice_(self._node, closed.allocation)
        self._outbox.keep(address, gone, request=gone.request, ttl_s=self._rules.closing_ttl_s)

    def tell(self, found: Found, sender: Sender, housing: Housing, warm: WarmOnes) -> None:
        """Serve what is true now, and say so when it changed. `found` goes into the journal with the generation."""
        floor = self._floor
        if self._news.must_reserve():
            record = NodeRecord(
                node=self._node,
                boot_id=floor.boot_id,
                generation_upto=self._news.reserve(),
                unclaimed=found.unclaimed_records(),
                unseen=tuple(found.unseen),
            )
            sender.save(record, None)
        quarantined: dict[GpuUuid, tuple[PlacementReport, ...]] = {}
        for gpu, span in [*self._stuck(), *housing.out_of_use()]:
            if span not in quarantined.get(gpu, ()):
                quarantined[gpu] = (*quarantined.get(gpu, ()), span)
        seen = Seen(floor.claims(), quarantined, housing.daemons(), warm.keys())
        slices = tuple(report_of(work, floor, self._rules) for work in floor.works.values())
        changed = self._news.update(floor.devices.shown(seen), slices)
        if changed is not None:
            self._outbox.keep(subjects.node(self._node), changed)

    def _stuck(self) -> list[tuple[GpuUuid, PlacementReport]]:
        """The places of slices that cannot be taken down."""
        return [
            (grant.gpu, PlacementReport(start=grant.start, size=grant.size))
            for work in self._floor.works.values()
            if stuck_on(work, self._floor, self._rules) is work
            for _, grant, _ in pairs(work.record)
        ]
