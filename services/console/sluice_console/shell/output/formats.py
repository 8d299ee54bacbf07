"""Print a document: as text for people, or as JSON or YAML for programs."""

import sys
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from sluice_console.core.documents import Document

OutputFormat = Literal["text", "wide", "json", "yaml"]
DocumentT = TypeVar("DocumentT", bound=Document)


def as_text(document: Document, form: OutputFormat, *, one_line: bool = False) -> str:
    """A document for a program, with its final newline. `one_line` writes JSON on one line."""
    if form == "yaml":
        import yaml  # noqa: PLC0415 - only those who ask for YAML wait for it

        plain, is_utf8 = msgspec.to_builtins(document), (sys.stdout.encoding or "").lower() in {"utf-8", "utf8"}
        text = yaml.dump(plain, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=is_utf8, width=4096)
        return f"---\n{text}" if one_line else text
    encoded = msgspec.json.encode(document)
    return (encoded if one_line else msgspec.json.format(encoded, indent=2)).decode() + "\n"


def is_for_programs(form: OutputFormat) -> bool:
    """Whether a document is wanted instead of text."""
    return form in {"json", "yaml"}


def print_document(
    document: DocumentT, form: OutputFormat, show: Callable[[DocumentT], None], *, one_line: bool = False
) -> None:
    """Print a document for a program, `one_line` if it is one of several; or show it to a person."""
    if is_for_programs(form):
        sys.stdout.write(as_text(document, form, one_line=one_line))
    else:
        show(document)
