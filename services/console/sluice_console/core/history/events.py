"""
The history message by message: the document of `sluice events`, whatever form it is printed in.

The messages themselves are on the bus (docs/events.md); the document says what a person needs of each.
"""

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.bus.subjects import SubjectError, parse
from sluice.contracts.messages import Envelope
from sluice_console.core.documents import VERSION, Document
from sluice_console.core.history.sentences import RequestNames, sentence, whom


class EventDocument(Document, frozen=True, kw_only=True):
    """`sluice events --json`: a line for each message, oldest first."""

    version: int = VERSION
    time: str
    """By its writer's clock."""
    subject: str
    """As kept in HISTORY."""
    noun: str
    """What it is about: request, ledger, slice, node ..."""
    word: str
    """The message's type (docs/events.md); empty if unreadable."""
    request: str
    """Empty if about none."""
    about: str
    """The pod as `namespace/name`; else node, source or role."""
    says: str
    """A sentence for people; its wording may change."""
    unreadable: str = ""
    """Why it cannot be read."""


def event_document(subject: str, envelope: Envelope | Undecodable, names: RequestNames) -> EventDocument | None:
    """One message of the history; None for a subject that is not ours. `names` learns from it."""
    try:
        address = parse(subject)
    except SubjectError:
        return None
    if isinstance(envelope, Undecodable):
        return EventDocument(
            time="",
            subject=subject,
            noun=address.kind,
            word="",
            request="",
            about=subject,
            says=f"cannot be read: {envelope.why}",
            unreadable=envelope.why,
        )
    names.learn(envelope.request or address.key[0], envelope.message)
    return EventDocument(
        time=envelope.time,
        subject=subject,
        noun=address.kind,
        word=type(envelope.message).__name__,
        request=envelope.request,
        about=whom(address.key, address.kind, envelope, names),
        says=sentence(envelope.message),
    )
