"""
One manifest file to the pods in it: who each is, and what it asks for or why that cannot be understood.

What is wrong with the text as a whole (not YAML, too large) breaks the file, for nobody can say which pods are in it;
what is wrong with one document refuses that document alone. A pod without any annotation of ours asks for nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sluice.contracts.messages import Claim
from sluice.contracts.refusals import Refusal, RefusalReason, shorten
from sluice.contracts.requests import Unquoted, is_ours, parse_claims
from sluice_pod_watcher.core.events import ManifestFile
from sluice_pod_watcher.core.rules import Rules
from sluice_pod_watcher.core.yaml_documents import Limits, YamlError, read_documents

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_POD_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
POD_NAME_MAX = 253
NAME_ALLOWED = "a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
LIST_KINDS = frozenset({"List", "PodList"})


@dataclass(frozen=True, slots=True)
class Found:
    """
    One document of a file.

    `document` is its identity within the file: `namespace/name`, with a number where two claim the same. Neither
    `claims` nor a `refusal` means a pod that asks for nothing.
    """

    document: str
    namespace: str
    name: str
    claims: tuple[Claim, ...] = ()
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """What is in a file; when it is `broken`, nobody knows."""

    found: tuple[Found, ...] = ()
    broken: Refusal | None = None


def parse_file(file: ManifestFile, rules: Rules) -> ParsedFile:
    """Read one file. Never raises, whatever is in it."""
    if file.error:
        return ParsedFile(broken=_broken(RefusalReason.NOT_YAML, f"{file.name} cannot be read: {file.error}", ""))
    if file.too_large or len(file.text) > rules.file_bytes_max:
        why = f"{file.name} is too large"
        return ParsedFile(broken=_broken(RefusalReason.TOO_LARGE, why, "", f"at most {rules.file_bytes_max} bytes"))
    limits = Limits(rules.documents_max, rules.nesting_max, rules.nodes_max)
    try:
        documents = read_documents(file.text, limits)
    except YamlError as error:
        reason = RefusalReason.TOO_LARGE if error.too_large else RefusalReason.NOT_YAML
        what = "is more than one file may hold" if error.too_large else "is not YAML"
        line = f"line {error.line}" if error.line else ""
        message = f"{file.name} {what}: {shorten(error.why, 200)}"
        return ParsedFile(broken=_broken(reason, message, line, value=_line(file.text, error.line)))
    objects = [each for document in documents for each in _objects(document.value, document.line)]
    if len(objects) > rules.documents_max:
        why = f"{file.name} holds {len(objects)} objects"
        return ParsedFile(broken=_broken(RefusalReason.TOO_LARGE, why, "", f"at most {rules.documents_max}"))
    return ParsedFile(found=_identified([_found(file.name, each, rules) for each in objects], file.name))


def _broken(reason: RefusalReason, message: str, field: str, allowed: str = "", value: str = "") -> Refusal:
    return Refusal(reason=reason, message=message, field=field, value=shorten(value), allowed=allowed)


def _line(text: str, number: int) -> str:
    """The line of that number (1 is the first) as a person sees it; empty when there is no number."""
    if not number:
        return ""
    lines = text.split("\n", number)
    shown = lines[number - 1].strip() if number <= len(lines) else ""
    return shown or "(end of file)"


# -- one document -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Object:
    """One object of a file: a document, or an item of a List. `path` leads to it within its document."""

    value: Any
    line: int
    path: str


def _objects(value: Any, line: int) -> Iterator[_Object]:
    """The document itself, or the items of a List. A List in a List is no pod, and is refused as such."""
    if isinstance(value, dict) and value.get("kind") in LIST_KINDS and isinstance(value.get("items"), list):
        for at, item in enumerate(value["items"]):
            yield _Object(item, line, f"items[{at}].")
    else:
        yield _Object(value, line, "")


def _found(file: str, item: _Object, rules: Rules) -> Found:
    """What one object is; `document` is left to `_identified`."""
    where = f"line {item.line}"
    if not isinstance(item.value, dict):
        why = f"{file}, {where}: a manifest is a mapping"
        return Found("", "", "", refusal=_not_a_pod(item, "", why, _words(item.value), "a Pod"))
    metadata = item.value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name, namespace = _text(metadata.get("name")), _text(metadata.get("namespace")) or "default"
    kind, version = item.value.get("kind"), item.value.get("apiVersion", "v1")
    if kind != "Pod":
        why = f"{file}, {where}: only pods are read from this folder"
        return Found("", namespace, name, refusal=_not_a_pod(item, "kind", why, _words(kind), "Pod"))
    if version != "v1":
        why = f"{file}, {where}: no version of a Pod"
        return Found("", namespace, name, refusal=_not_a_pod(item, "apiVersion", why, _words(version), "v1"))
    annotations = metadata.get("annotations")
    if annotations is not None and not isinstance(annotations, dict) and not _is_null(annotations):
        refusal = _wrong(item, "metadata.annotations", annotations, "no mapping", "a mapping of strings")
        return Found("", namespace, name, refusal=refusal)
    if not isinstance(annotations, dict) or not any(is_ours(key) for key in annotations):
        return Found("", namespace, name)
    wrong = _wrong_identity(item, metadata)
    if wrong is not None:
        return Found("", namespace, name, refusal=wrong)
    containers = _containers(item)
    if isinstance(containers, Refusal):
        return Found("", namespace, name, refusal=containers)
    claims = parse_claims(annotations, containers, max_gpus_per_node=rules.max_gpus_per_node)
    if isinstance(claims, Refusal):
        return Found("", namespace, name, refusal=claims)
    return Found("", namespace, name, claims=claims)


def _wrong_identity(item: _Object, metadata: dict[str, Any]) -> Refusal | None:
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    if not isinstance(name, str) or len(name) > POD_NAME_MAX or _POD_NAME.fullmatch(name) is None:
        return _wrong(item, "metadata.name", name, "no name of a pod", f"at most {POD_NAME_MAX} of {NAME_ALLOWED}")
    if not isinstance(namespace, str) or _NAMESPACE.fullmatch(namespace) is None:
        allowed = "at most 63 of a-z, 0-9 and '-'"
        return _wrong(item, "metadata.namespace", namespace, "no name of a namespace", allowed)
    return None


def _containers(item: _Object) -> list[str] | Refusal:
    """The names of the containers, in their order."""
    spec = item.value.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers:
        return _wrong(item, "spec.containers", containers, "a pod needs a container", "a list of containers")
    names: dict[str, None] = {}
    for at, container in enumerate(containers):
        name = container.get("name") if isinstance(container, dict) else None
        field = f"spec.containers[{at}].name"
        if not isinstance(name, str) or _NAMESPACE.fullmatch(name) is None:
            return _wrong(item, field, name, "no name of a container", "at most 63 of a-z, 0-9 and '-'")
        if name in names:
            return _wrong(item, field, name, "two containers have this name", "a name of its own")
        names[name] = None
    return list(names)


def _wrong(item: _Object, field: str, value: Any, why: str, allowed: str) -> Refusal:
    return Refusal(
        reason=RefusalReason.INVALID_VALUE,
        message=why,
        field=item.path + field,
        value=shorten(_words(value)),
        allowed=allowed,
    )


def _not_a_pod(item: _Object, field: str, why: str, value: str, allowed: str) -> Refusal:
    path = (item.path + field).rstrip(".")
    return Refusal(reason=RefusalReason.NOT_A_POD, message=why, field=path, value=shorten(value), allowed=allowed)


def _text(value: Any) -> str:
    return shorten(value, POD_NAME_MAX) if isinstance(value, str) else ""


def _is_null(value: Any) -> bool:
    return isinstance(value, Unquoted) and value.text in {"", "~", "null", "Null", "NULL"}


def _words(value: Any) -> str:
    """An outside value as it was written, when it is short; else what it is."""
    match value:
        case str():
            return value
        case Unquoted():
            return value.text
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return ""


# -- all of a file ------------------------------------------------------------------------------------------------


def _identified(objects: list[Found], file: str) -> tuple[Found, ...]:
    """
    Give every object an identity that survives edits of the file.

    The first pod of a name has that name; a second one is refused. Everything else (kinds that are no pods, objects
    without a name) takes what is left, so that a mended `kind` keeps its identity, and is numbered otherwise.
    """
    taken: dict[str, None] = {}
    keys: dict[int, str] = {}
    pods_first = sorted(range(len(objects)), key=lambda at: _is_no_pod(objects[at]))
    for at in pods_first:
        each = objects[at]
        base = f"{each.namespace}/{each.name}" if each.name else f"document {at + 1}"
        number, key = 1, base
        while key in taken:
            number += 1
            key = f"{base} ({number})"
        taken[key] = None
        keys[at] = key
        if number > 1 and not _is_no_pod(each) and _asks(each):
            objects[at] = replace(each, claims=(), refusal=duplicate(base, file))
    return tuple(replace(each, document=keys[at]) for at, each in enumerate(objects))


def _is_no_pod(found: Found) -> bool:
    return found.refusal is not None and found.refusal.reason is RefusalReason.NOT_A_POD


def _asks(found: Found) -> bool:
    return bool(found.claims) or found.refusal is not None


def duplicate(pod: str, file: str) -> Refusal:
    """The refusal of a pod whose name another one has, in `file`."""
    return Refusal(
        reason=RefusalReason.DUPLICATE_POD,
        message=f"a pod of this name is already in {file}",
        field="metadata.name",
        value=shorten(pod),
        allowed="one pod of a name in a namespace",
    )
