"""docs/json.md: what scripts rely on."""

import re
from pathlib import Path

from json_page import page, schemas

from sluice_console.core.schema import COMMANDS, schema

ROOT = Path(__file__).parents[4]


def test_the_documented_shapes_are_the_printed_ones():
    """A field that a script may rely on is missing from the page; `make docs` writes both files."""
    assert (ROOT / "docs" / "json.md").read_text(encoding="utf-8") == page()
    assert (ROOT / "docs" / "json-schema.json").read_text(encoding="utf-8") == schemas()


def test_every_field_is_on_the_page():
    """A field that the page leaves out is relied on by accident, or not found."""
    shapes = {
        name: shape["properties"]
        for document in COMMANDS.values()
        for name, shape in schema(document)["$defs"].items()
        if "properties" in shape
    }
    text = page()
    assert len(shapes) > 40
    for name, fields in shapes.items():
        of_shape = re.split(rf"\n{name}(?::|\n)", text)[1].partition("\n\n")[0]
        lines = re.findall(r"^  (\w+(?:, \w+)*)(?=:|  |$)", of_shape, re.MULTILINE)
        told = [field for line in lines for field in line.split(", ")]
        assert told == [field for field in fields if field != "version"], name
