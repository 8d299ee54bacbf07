"""Read YAML into plain values, safely: bounded in depth and size, with the line of every error.

Built on the parser's events: no recursion, no constructors, aliases count in full, and values that are not strings stay
as written (`Unquoted`), so a refusal can quote them. Merge keys (`<<`) work."""

from dataclasses import dataclass, field
from typing import Any

import yaml

from sluice.contracts.request_syntax import Unquoted
from sluice.contracts.request_syntax.source_text import is_null

_STRING = "tag:yaml.org,2002:str"
_STRINGS = frozenset({_STRING, "tag:yaml.org,2002:value"})
"""A lone `=` has a type of its own in YAML, but people mean a string."""
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """Anything above is refused."""

    file_bytes_max: int = 1024 * 1024
    """Of one text. An object in Kubernetes' own store is at most 1.5 MiB."""
    documents_max: int = 1000
    """Documents in one text; items of a List count."""
    nesting_max: int = 64
    """A Pod needs about ten levels."""
    nodes_max: int = 100_000
    """Values in one text, each alias counted in full (alias bombs)."""


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """One document: its first line (counted from 1) and its value. Mappings have string keys only."""

    line: int
    value: dict[str, Any] | list[Any] | str | Unquoted


class YamlError(ValueError):
    """A text that is not YAML, or over a limit (`too_large`). `line` is 0 if unknown."""

    def __init__(self, why: str, line: int, *, too_large: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.line = line
        self.too_large = too_large


def read_documents(text: str, limits: ManifestLimits) -> list[YamlDocument]:
    """All non-empty documents of a text. Raises YamlError and nothing else."""
    documents: list[YamlDocument] = []
    try:
        loader = yaml.CSafeLoader(text)
        try:
            builder = _Builder(loader, limits)
            while loader.check_event():
                document = builder.take(loader.get_event())
                if document is not None:
                    documents.append(document)
                    if len(documents) > limits.documents_max:
                        raise YamlError(f"more than {limits.documents_max} documents", document.line, too_large=True)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark is not None and _indents_with_tab(text, mark.line):
            why = "the line is indented with a tab; YAML allows only spaces: replace the tab"
            raise YamlError(why, mark.line + 1) from None
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(why or "cannot be parsed", mark.line + 1 if mark is not None else 0) from None
    except yaml.YAMLError as error:  # characters that YAML forbids
        raise YamlError(getattr(error, "reason", None) or "cannot be parsed", 0) from None
    except UnicodeError:
        raise YamlError("contains characters that are not text", 0) from None
    return documents


def _indents_with_tab(text: str, line: int) -> bool:
    """Whether the line of this number (0 is the first) has a tab in its indentation."""
    lines = text.split("\n", line + 1)
    indent = lines[line] if line < len(lines) else ""
    return "\t" in indent[: len(indent) - len(indent.lstrip())]


@dataclass(slots=True)
class _Open:
    value: dict[str, Any] | list[Any]
    line: int
    anchor: str | None
    weight: int = 1
    key: str | None = None
    """The mapping's key whose value comes next."""
    merges: list[Any] = field(default_factory=list)
    merging: bool = False


class _Builder:
    def __init__(self, loader: Any, limits: ManifestLimits) -> None:
        self._loader = loader
        self._limits = limits
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._nodes = 0
        self._root: tuple[Any, int] | None = None

    def take(self, event: Any) -> YamlDocument | None:
        line = event.start_mark.line + 1
        match event:
            case yaml.ScalarEvent():
                self._add(self._scalar(event, line), line, event.anchor, weight=1)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self._begin(event, line)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self._end()
            case yaml.AliasEvent():
                self._alias(str(event.anchor), line)
            case yaml.DocumentStartEvent():
                self._anchors, self._root = {}, None
            case yaml.DocumentEndEvent():
                return self._document()
        return None

    def _document(self) -> YamlDocument | None:
        root, self._root = self._root, None
        if root is None or is_null(root[0]):
            return None
        return YamlDocument(root[1], root[0])

    def _scalar(self, event: Any, line: int) -> "str | Unquoted | _Merge":
        if event.tag is not None and event.tag != "!":
            self._check_tag(event.tag, line)
            return event.value if event.tag == _STRING else Unquoted(event.value)
        tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag == _MERGE:
            return _MERGE_KEY
        return event.value if tag in _STRINGS else Unquoted(event.value)

    @staticmethod
    def _check_tag(tag: str, line: int) -> None:
        if tag not in _PLAIN_TAGS:
            raise YamlError(f"the tag {tag[:100]} is not allowed", line)

    def _begin(self, event: Any, line: int) -> None:
        if event.tag is not None and event.tag != "!":
            self._check_tag(event.tag, line)
        if len(self._open) >= self._limits.nesting_max:
            raise YamlError(f"nested deeper than {self._limits.nesting_max} levels", line, too_large=True)
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._count(1, line)
        self._open.append(_Open(value, line, event.anchor))

    def _end(self) -> None:
        done = self._open.pop()
        if isinstance(done.value, dict):
            for source in done.merges:
                for key, value in source.items():
                    done.value.setdefault(key, value)
        self._put(done.value, done.line, done.weight)
        if done.anchor is not None:
            self._anchors[done.anchor] = (done.value, done.weight)

    def _alias(self, anchor: str, line: int) -> None:
        known = self._anchors.get(anchor)
        if known is None:
            raise YamlError(f"the alias *{anchor[:100]} has no anchor before it", line)
        self._add(known[0], line, None, weight=known[1])

    def _add(self, value: Any, line: int, anchor: str | None, *, weight: int) -> None:
        self._count(weight, line)
        self._put(value, line, weight)
        if anchor is not None:
            self._anchors[anchor] = (value, weight)

    def _count(self, weight: int, line: int) -> None:
        self._nodes += weight
        if self._nodes > self._limits.nodes_max:
            raise YamlError(f"more than {self._limits.nodes_max} values, aliases expanded", line, too_large=True)

    def _put(self, value: Any, line: int, weight: int) -> None:
        inside = self._open[-1] if self._open else None
        is_key = inside is not None and isinstance(inside.value, dict) and inside.key is None and not inside.merging
        if isinstance(value, _Merge) and not is_key:
            value = "<<"
        if inside is None:
            self._root = (value, line)
            return
        inside.weight += weight
        if isinstance(inside.value, list):
            inside.value.append(value)
        elif inside.merging:
            inside.merging = False
            inside.merges += _mappings(value, line)
        elif is_key:
            self._put_key(inside, value, line)
        elif inside.key is not None:
            inside.value[inside.key] = value
            inside.key = None

    @staticmethod
    def _put_key(inside: _Open, value: Any, line: int) -> None:
        if isinstance(value, _Merge):
            inside.merging = True
            return
        if isinstance(value, dict | list):
            raise YamlError("a key is a mapping or a list", line)
        key = value.text if isinstance(value, Unquoted) else value
        if key in inside.value:
            raise YamlError(f"the key {key[:100]!r} is duplicated in one mapping", line)
        inside.key = key


class _Merge:
    """The key `<<`."""


_MERGE_KEY = _Merge()


def _mappings(value: Any, line: int) -> list[dict[str, Any]]:
    """What a merge key merges: one mapping, or several with the first winning."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in found):
        raise YamlError("a merge key (<<) takes a mapping, or a list of mappings", line)
    return found
