"""
Generates docs/{events,json,metrics,invariants,alerts,models,settings,values}.md, the table of protocol.md, the
dashboard, the chart's schema and the broker's accounts;
fills what was tried into docs/install.md and README.md.

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
from json_page import page as json_page
from json_page import schemas
from message_examples import example_of
from metrics_page import page as metrics
from models_page import page as models
from settings_page import page as settings
from tried_page import install_page, readme
from values_page import SCHEMA as VALUES_SCHEMA
from values_page import page as values
from values_page import schema as values_schema

from sluice.contracts.bus.streams import STREAMS, SUBJECT_KINDS, SubjectKind
from sluice.contracts.messages import Envelope
from sluice.runtime.nats_server.users import Callout, authorization

DOCS = Path(__file__).resolve().parent.parent / "docs"
DASHBOARD = DOCS.parent / "deploy/helm/sluice/files/dashboard.json"
ACCOUNTS = DOCS.parent / "deploy/helm/sluice/files/accounts.conf"

READ_ALL = ("console", "operator")
"""Readers that are not repeated in each row."""

HEAD = """# Messages on the bus

Generated from `sluice.contracts` by `make docs`; do not edit.

Each subject has one kind of writer, and its last message is the current state. Writes are guarded by the subject's
last sequence; a ledger entry by that of its node's whole ledger. `BOOK` holds decisions, `STATE` observations, which
writers compare and publish again after a reconnect. `HISTORY` holds the past under `hist.sluice.>`, for people: no
decision reads it.

In a subject, the dots of a node's name are `_`. To watch: `sluice events -f`; `nats sub 'hist.sluice.>'` (what was
stored); `nats sub 'sluice.>'` (every attempt to write).
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
    assert all({*READ_ALL} <= {*noun.readers} for noun in SUBJECT_KINDS)
    yield "\n## Subjects\n\nThe console and operators read every subject.\n"
    yield "| subject | holds | writers | readers | messages |\n|---|---|---|---|---|"
    for noun in SUBJECT_KINDS:
        words = ", ".join(f"[{kind.__name__}](#{kind.__name__.lower()})" for kind in noun.messages)
        readers = ", ".join(reader for reader in noun.readers if reader not in READ_ALL)
        yield f"| `{_subject(noun)}` | {noun.says} | {', '.join(noun.writers)} | {readers} | {words} |"


def _subject(noun: SubjectKind) -> str:
    return ".".join(["sluice", noun.kind, *(f"<{part}>" for part in noun.key)])


def _envelope() -> Iterator[str]:
    fields = ", ".join(f"`{field}`" for field in Envelope.__struct_fields__)
    yield f"\n## Envelope\n\n{getdoc(Envelope)}\n\nFields: {fields}. `message` is one of those below."


def _messages() -> Iterator[str]:
    yield "\n## Messages"
    for noun in SUBJECT_KINDS:
        for kind in noun.messages:
            yield f"\n### {kind.__name__}\n\n{getdoc(kind)}\n\n{_json(example_of(kind))}"


def _json(value: object) -> str:
    return f"```json\n{_wrapped(msgspec.to_builtins(value))}\n```"


def _wrapped(value: object) -> str:
    """A message as it is on the wire, with line breaks between its fields."""
    if not isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    lines = [""]
    for key, each in value.items():
        field = msgspec.json.encode({key: each}).decode()[1:-1] + ","
        if lines[-1] and len(lines[-1]) + len(field) > 116:
            lines.append("")
        lines[-1] += field
    return "{" + "\n ".join(lines).removesuffix(",") + "}"


def accounts() -> str:
    """The broker's accounts where a callout lets users in; its keys are variables, in a file of their own."""
    head = "# Generated from sluice.contracts.bus.nats_permissions by `make docs`; do not edit."
    lines = authorization((), Callout("$SLUICE_ISSUER", "$SLUICE_CALLOUT", "$SLUICE_XKEY"))
    return "\n".join([head, 'include "../credentials/keys.conf"', *lines]) + "\n"


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a page is out of date")
    check = parser.parse_args().check
    stale = []
    for page, wanted in (
        (DOCS / "events.md", catalogue()),
        (DOCS / "json.md", json_page()),
        (DOCS / "json-schema.json", schemas()),
        (DOCS / "metrics.md", metrics()),
        (DOCS / "invariants.md", invariants()),
        (DOCS / "protocol.md", protocol()),
        (DOCS / "alerts.md", alerts_page()),
        (DOCS / "models.md", models()),
        (DOCS / "settings.md", settings()),
        (DOCS / "values.md", values()),
        (VALUES_SCHEMA, values_schema()),
        (DOCS / "install.md", install_page()),
        (DOCS.parent / "README.md", readme()),
        (DASHBOARD, dashboard()),
        (ACCOUNTS, accounts()),
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
