"""
Which document of which file is which request, for as long as it is there.

A request's id must outlive this process and the broker (a running pod is known by it to its node), and must not
outlive the document (a file made anew is a new pod). So the book is kept on disk, and every change is there before
anything is said about it on the bus: `saved` tells what may be said.
"""

from collections.abc import Iterable
from dataclasses import replace

from sluice.contracts.ids import RequestId, RunId
from sluice.contracts.messages import Held, WithdrawCause
from sluice_pod_watcher.core.folder.events import IdentityRecord, RequestRevision, SaveIdentities

ASKS_MAX = 8
"""How many of the last things said are remembered, to compare an answer with what it answers."""
DocumentKey = tuple[str, str]
"""File and document."""


class Identities:
    """The book: every record that is not closed yet. At most one living record at a place."""

    def __init__(self, run: RunId) -> None:
        """Begin empty; new ids are made of `run` and a counter."""
        self._run = run
        self._number = 0
        self._records: dict[RequestId, IdentityRecord] = {}
        self._living: dict[DocumentKey, RequestId] = {}
        self._changed_in: dict[RequestId, int] = {}
        """The version of the book that first holds the present record of a request."""
        self._version = 0
        self._saved = 0
        self._saving = False
        self._was_empty = False
        self._adopted: dict[RequestId, None] = {}
        """Whom the bus has told of when the book was lost, also those that are closed by now."""
        self._first: dict[RequestId, None] | None = None
        """Whom the first listing of this process began; None before that."""

    # -- reading --------------------------------------------------------------------------------------------------

    def __contains__(self, uid: object) -> bool:
        """Whether there is a record of this id."""
        return uid in self._records

    def get(self, uid: RequestId) -> IdentityRecord | None:
        """The record of this id."""
        return self._records.get(uid)

    def all(self) -> tuple[IdentityRecord, ...]:
        """Every record, the oldest first."""
        return tuple(self._records.values())

    def living(self) -> tuple[IdentityRecord, ...]:
        """The records that somebody wants, the oldest first."""
        return tuple(record for record in self._records.values() if record.ended is None)

    def at(self, place: DocumentKey) -> IdentityRecord | None:
        """The living record of a document."""
        uid = self._living.get(place)
        return self._records[uid] if uid is not None else None

    def may_be_unknown(self, uid: RequestId) -> bool:
        """
        Whether this id may have been in a book that was lost, and nobody has told of it: there was no book, and the id
        is none of our own making.
        """
        return self._was_empty and uid not in self._adopted and not uid.startswith(f"{self._run}-")

    def may_be_known_as_another(self, uid: RequestId) -> bool:
        """Whether its pod was in the folder already when the book was found lost: it may run under a lost id."""
        return self._was_empty and uid in (self._first or {})

    def is_saved(self, uid: RequestId) -> bool:
        """Whether the present record of this id would survive a crash."""
        return self._changed_in.get(uid, 0) <= self._saved

    # -- changing -------------------------------------------------------------------------------------------------

    def load(self, records: Iterable[IdentityRecord]) -> None:
        """Take over what a predecessor has saved. Of two living records at one place the later one counts."""
        for record in records:
            self._put(record)
        self._was_empty = not self._records
        self._changed_in.clear()
        self._version = self._saved

    def listed(self) -> None:
        """Everything in the folder has its record."""
        if self._first is None:
            self._first = {uid: None for uid in self._records if uid.startswith(f"{self._run}-")}

    def begin(self, place: DocumentKey, namespace: str, name: str, ask: RequestRevision) -> IdentityRecord:
        """A new identity for a document."""
        self._number += 1
        uid = RequestId(f"{self._run}-{self._number}")
        return self._put(IdentityRecord(uid, *place, namespace, name, (ask,)))

    def adopt(self, record: IdentityRecord) -> None:
        """Take over what the bus says of an identity that no file remembers."""
        self._adopted[record.uid] = None
        self._put(record)

    def say(self, uid: RequestId, ask: RequestRevision) -> IdentityRecord:
        """The identity says something else from now on."""
        record = self._records[uid]
        return self._put(replace(record, asks=(*record.asks, ask)[-ASKS_MAX:]))

    def hold(self, uid: RequestId, held: Held) -> IdentityRecord:
        """It is bound to this now."""
        return self._put(replace(self._records[uid], held=held))

    def end(self, uid: RequestId, cause: WithdrawCause) -> IdentityRecord:
        """Nobody wants it any more, for ever. Its place is free for another identity."""
        record = self._records[uid]
        if record.ended is not None:
            return record
        return self._put(replace(record, ended=cause))

    def drop(self, uid: RequestId) -> None:
        """The last word about it was said."""
        record = self._records.pop(uid)
        self._vacate(record)
        if self._first is not None:
            self._first.pop(uid, None)
        self._version += 1
        self._changed_in.pop(uid, None)

    def _put(self, record: IdentityRecord) -> IdentityRecord:
        place = (record.file, record.document)
        known = self._records.get(record.uid)
        if known is not None:
            self._vacate(known)
        if record.ended is None:
            other = self._living.get(place)
            if other is not None and other != record.uid:
                self.end(other, "pod gone")
            self._living[place] = record.uid
        self._records[record.uid] = record
        self._version += 1
        self._changed_in[record.uid] = self._version
        return record

    def _vacate(self, record: IdentityRecord) -> None:
        place = (record.file, record.document)
        if self._living.get(place) == record.uid:
            del self._living[place]

    # -- keeping --------------------------------------------------------------------------------------------------

    def save(self) -> list[SaveIdentities]:
        """The instruction to save what has changed, unless one is under way."""
        if self._saving or self._version == self._saved:
            return []
        self._saving = True
        return [SaveIdentities(self._version, self.all())]

    def saved(self, version: int) -> None:
        """The book of that version is on disk."""
        self._saving = False
        self._saved = max(self._saved, version)
        for uid in [uid for uid, changed_in in self._changed_in.items() if changed_in <= self._saved]:
            del self._changed_in[uid]
