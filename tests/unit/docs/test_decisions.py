"""Every decision record has the parts that a reader looks for, and a row in the index."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "docs" / "adr"
RECORDS = sorted(FOLDER.glob("0*.md"))
INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_its_parts_and_its_row(record: Path) -> None:
    """A decision without a status, or outside of the index, is looked for in vain."""
    text = record.read_text(encoding="utf-8")
    title = re.match(rf"# {record.name[:4]} (.+)\n", text)
    assert title is not None
    assert re.search(r"^\*\*Status\*\* (Accepted|Superseded)", text, re.MULTILINE)
    assert f"| [{record.name[:4]}]({record.name}) | {title[1]} |" in INDEX
