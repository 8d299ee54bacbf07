"""
Generates docs/{events,json,metrics,invariants,alerts,models}.md, the table in docs/protocol.md and the dashboard.

`--check` fails when one is out of date.

What the bus carries, what commands print, what services count and what the simulator judges is declared once, in code;
a catalogue kept by hand would drift.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path

import msgspec
from alerts_page import alerts_page
from dashboard import dashboard
from invariants_page import page as invariants
from invariants_page import protocol
from message_examples import EXAMPLES, example_of
from metrics_page import page as metrics
from models_page import page as models

from sluice.contracts import codec
from sluice.contracts.messages import AnyMessage, Envelope
from sluice.contracts.streams import NOUNS, STREAMS, Noun
from sluice_console.core.schema import page as schemas

DOCS = Path(__file__).resolve().parent.parent / "docs"
DASHBOARD = DOCS.parent / "deploy/kubernetes/components/dashboard/sluice.json"

HEAD = """# The words on the bus

Generated from `sluice.contracts` by `make docs`; do not edit.

Every subject is a noun with one kind of writer, and its last message is that noun's current state. A reader that sees
only the last message of each subject knows the whole state, so nothing depends on having seen every message. Writes are
guarded: a ledger entry by all of its node's ledger, everything else by its own subject.

`BOOK` holds what was decided and is synced to disk on every write. `STATE` holds what is; its writers compare and
publish again after a reconnect. `HISTORY` holds what was, under `hist.sluice.>`: for people and for `sluice explain`;
nothing is decided from it. A node name's dots are `_` in a subject.

Watch it with the ordinary NATS tools, `nats sub 'sluice.>'` (every attempt to write, refused ones included) or
`nats sub 'hist.sluice.>'` (what was stored), or with `sluice events -f`.
"""


def catalogue() -> str:
    """The whole of docs/events.md."""
    return "\n".join([HEAD, *_streams(), *_nouns(), *_envelope(), *_messages()])


def _streams() -> Iterator[str]:
    yield "## Streams\n\n| stream | subjects | kept |\n|---|---|---|"
    for stream in STREAMS:
        subjects = ", ".join(f"`{subject}`" for subject in stream.subjects)
        age = f", {stream.max_age_s // 86400} days" if stream.max_age_s else ""
        last = "last value per subject" if stream.per_subject_max == 1 else f"{stream.per_subject_max} per subject"
        synced = "rebuildable" if stream.rebuildable else "synced on every write"
        yield f"| {stream.stream} | {subjects} | {last}{age}; {synced} |"


def _nouns() -> Iterator[str]:
    yield "\n## Subjects\n\n| subject | says | writers | readers | messages |\n|---|---|---|---|---|"
    for noun in NOUNS:
        words = ", ".join(f"[{kind.__name__}](#{kind.__name__.lower()})" for kind in noun.messages)
        yield f"| `{_subject(noun)}` | {noun.says} | {', '.join(noun.writers)} | {', '.join(noun.readers)} | {words} |"


def _subject(noun: Noun) -> str:
    return ".".join(["sluice", noun.kind, *(f"<{part}>" for part in noun.key)])


def _envelope() -> Iterator[str]:
    sample = Envelope(
        id="a91c-77.1",
        operation="a91c-77",
        request="pods-7f3a-4",
        schema=codec.SCHEMA,
        time="2026-01-01T00:00:00Z",
        message=_any(EXAMPLES[0]),
    )
    yield f"\n## Envelope\n\n{getdoc(Envelope)}\n\n{_json(sample)}"


def _messages() -> Iterator[str]:
    yield "\n## Messages"
    for noun in NOUNS:
        for kind in noun.messages:
            yield f"\n### {kind.__name__}\n\n`{_subject(noun)}`. {getdoc(kind)}\n\n{_json(example_of(kind))}"


def _any(message: object) -> AnyMessage:
    return msgspec.convert(msgspec.to_builtins(message), AnyMessage)


def _json(value: object) -> str:
    return f"```json\n{msgspec.json.format(msgspec.json.encode(value), indent=2).decode()}\n```"


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a page is out of date")
    check = parser.parse_args().check
    stale = []
    for page, wanted in (
        (DOCS / "events.md", catalogue()),
        (DOCS / "json.md", schemas()),
        (DOCS / "metrics.md", metrics()),
        (DOCS / "invariants.md", invariants()),
        (DOCS / "protocol.md", protocol()),
        (DOCS / "alerts.md", alerts_page()),
        (DOCS / "models.md", models()),
        (DASHBOARD, dashboard()),
    ):
        found = page.read_text() if page.exists() else ""
        if found == wanted:
            continue
        if check:
            difference = difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), page.name, "code")
            sys.stdout.writelines(difference)
            stale.append(page.name)
        else:
            page.write_text(wanted)
    if stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run `make docs` and commit\n")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
