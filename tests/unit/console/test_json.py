"""docs/json.md: what scripts rely on."""

from pathlib import Path

import msgspec

from sluice_console.core.documents import GpusDocument
from sluice_console.core.gpus import gpus_document
from sluice_console.core.schema import page

ROOT = Path(__file__).parents[3]


def test_the_documented_shapes_are_the_printed_ones():
    """The page is made by `sluice_console.core.schema.page()`; write it anew when this fails."""
    assert (ROOT / "docs" / "json.md").read_text(encoding="utf-8") == page()


def test_a_printed_document_can_be_read_back(make):
    """Encoding loses nothing."""
    inventory = make.inventory(make.gpu_report(instances=(make.made(),)), make.slice())
    document = gpus_document(make.world(inventory=inventory))
    assert msgspec.json.decode(msgspec.json.encode(document), type=GpusDocument) == document
