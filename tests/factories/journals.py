"""Journals of node agents, as an agent that does one thing at a time writes them."""

from collections.abc import Sequence

from sluice_node_agent.core.journal_records import Record
from sluice_node_agent.shell.journal.journal import Journal


def append(journal: Journal, records: Sequence[Record]) -> None:
    """Write records and sync them, all or none; rewrite a journal that is long. Raises JournalError."""
    journal.write(records)
    journal.sync()
    if journal.is_long:
        journal.rewrite()
