"""
One text of manifests to the pods in it: who each is, and what it asks for or why that cannot be understood.

What is wrong with the text as a whole (not YAML, too large) breaks it, for nobody can say which pods are in it; what is
wrong with one object refuses that object alone. A pod without any key or resource of ours asks for nothing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from sluice.contracts.asking import (
    AskLimits,
    ContainerAsk,
    PodAsk,
    Unquoted,
    is_gpu_resource,
    is_our_annotation,
    parse_pod,
)
from sluice.contracts.manifests.limits import ManifestLimits
from sluice.contracts.manifests.yaml_documents import YamlError, read_documents
from sluice.contracts.messages import NO_NEEDS, HostNeeds
from sluice.contracts.pod_specs import read_containers, read_host_needs, with_node
from sluice.contracts.refusals import Refusal, RefusalReason, shorten

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_POD_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
POD_NAME_MAX = 253
NAME_ALLOWED = "a-z, 0-9, '-' and '.', beginning and ending with a letter or digit"
NODE_NAME = "fastgshare/node_name"
"""The annotation that names a node beside the spec."""
LIST_KINDS = frozenset({"List", "PodList"})


@dataclass(frozen=True, slots=True)
class PodManifest:
    """
    One object of a text. Neither an `ask` nor a `refusal` means a pod that asks for nothing.

    Of a pod that asks: its annotations and containers as they were written, and what it needs of its node.
    """

    namespace: str
    name: str
    annotations: Mapping[str, object] = field(default_factory=dict)
    containers: tuple[ContainerAsk, ...] = ()
    host: HostNeeds = NO_NEEDS
    ask: PodAsk | None = None
    refusal: Refusal | None = None


def read_manifests(
    file: str, text: str, *, limits: ManifestLimits, asks: AskLimits
) -> tuple[PodManifest, ...] | Refusal:
    """The objects of a text, in their order; or why it cannot be read at all. Never raises, whatever is in it."""
    if len(text) > limits.file_bytes_max:
        return too_large(file, limits)
    try:
        documents = read_documents(text, limits)
    except YamlError as error:
        reason = RefusalReason.TOO_LARGE if error.too_large else RefusalReason.NOT_YAML
        what = "is more than one file may hold" if error.too_large else "is not YAML"
        line = f"line {error.line}" if error.line else ""
        message = f"{file} {what}: {shorten(error.why, 200)}"
        return Refusal(reason=reason, message=message, field=line, value=shorten(_line(text, error.line)))
    objects = [each for document in documents for each in _objects(document.value, document.line)]
    if len(objects) > limits.documents_max:
        why = f"{file} holds {len(objects)} objects"
        return Refusal(reason=RefusalReason.TOO_LARGE, message=why, allowed=f"at most {limits.documents_max}")
    return tuple(_read(file, each, asks) for each in objects)


def too_large(file: str, limits: ManifestLimits) -> Refusal:
    """The refusal of a text that was not even looked at."""
    allowed = f"at most {limits.file_bytes_max} bytes"
    return Refusal(reason=RefusalReason.TOO_LARGE, message=f"{file} is too large", allowed=allowed)


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
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in LIST_KINDS and isinstance(value.get("items"), list):
        for at, item in enumerate(value["items"]):
            yield _Object(item, line, f"items[{at}].")
    else:
        yield _Object(value, line, "")


def _read(file: str, item: _Object, limits: AskLimits) -> PodManifest:
    """What one object is."""
    where = f"line {item.line}"
    if not isinstance(item.value, dict):
        why = f"{file}, {where}: a manifest is a mapping"
        return PodManifest("", "", refusal=_not_a_pod(item, "", why, _words(item.value), "a Pod"))
    metadata = item.value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name, namespace = _text(metadata.get("name")), _text(metadata.get("namespace")) or "default"
    kind, version = item.value.get("kind"), item.value.get("apiVersion", "v1")
    if kind != "Pod":
        why = f"{file}, {where}: only pods are read"
        return PodManifest(namespace, name, refusal=_not_a_pod(item, "kind", why, _words(kind), "Pod"))
    if version != "v1":
        why = f"{file}, {where}: no version of a Pod"
        return PodManifest(namespace, name, refusal=_not_a_pod(item, "apiVersion", why, _words(version), "v1"))
    annotations = metadata.get("annotations")
    if annotations is not None and not isinstance(annotations, dict) and not _is_null(annotations):
        refusal = _wrong(item, "metadata.annotations", annotations, "no mapping", "a mapping of strings")
        return PodManifest(namespace, name, refusal=refusal)
    annotations = annotations if isinstance(annotations, dict) else {}
    spec = item.value.get("spec")
    if not any(is_our_annotation(key) for key in annotations) and not _names_gpus(spec):
        return PodManifest(namespace, name)
    wrong = _wrong_identity(item, metadata)
    if wrong is not None:
        return PodManifest(namespace, name, refusal=wrong)
    return replace(_asked(item, annotations, spec, limits), namespace=namespace, name=name)


def _names_gpus(spec: Any) -> bool:
    """Whether any container's resources are ours to understand. Whatever has another shape names none."""
    listed = [each for kind in ("containers", "initContainers") for each in _items(spec, kind)]
    parts = [_child(_child(each, "resources"), part) for each in listed for part in ("limits", "requests")]
    return any(isinstance(part, dict) and any(is_gpu_resource(name) for name in part) for part in parts)


def _child(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _items(value: Any, key: str) -> list[Any]:
    listed = _child(value, key)
    return listed if isinstance(listed, list) else []


def _asked(item: _Object, annotations: dict[str, Any], spec: Any, limits: AskLimits) -> PodManifest:
    """What a pod asks for; who it is, is left to the caller."""
    containers = read_containers(spec)
    if isinstance(containers, Refusal):
        return _refused(item, containers)
    ask = parse_pod(annotations, containers, limits=limits)
    if isinstance(ask, Refusal):
        return PodManifest("", "", refusal=ask)
    if not ask.claims:
        return PodManifest("", "")
    needs = read_host_needs(spec)
    if not isinstance(needs, Refusal):
        needs = with_node(needs, ask.node_name, NODE_NAME)
    if isinstance(needs, Refusal):
        return _refused(item, needs)
    return PodManifest("", "", annotations, containers, needs, ask)


def _refused(item: _Object, refusal: Refusal) -> PodManifest:
    """A refusal of something within the object, by its path in the file."""
    return PodManifest("", "", refusal=msgspec.structs.replace(refusal, field=item.path + refusal.field))


def _wrong_identity(item: _Object, metadata: dict[str, Any]) -> Refusal | None:
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    if not isinstance(name, str) or len(name) > POD_NAME_MAX or _POD_NAME.fullmatch(name) is None:
        return _wrong(item, "metadata.name", name, "no name of a pod", f"at most {POD_NAME_MAX} of {NAME_ALLOWED}")
    if not isinstance(namespace, str) or _NAMESPACE.fullmatch(namespace) is None:
        allowed = "at most 63 of a-z, 0-9 and '-'"
        return _wrong(item, "metadata.namespace", namespace, "no name of a namespace", allowed)
    return None


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
