"""Faults of metadata, for all kinds: names, labels, annotations, immutable fields. Pure."""

import re

from fake_kube.errors import Fault, Json

DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
DNS_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
NAME_PART = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
MAX_PREFIX, MAX_NAME_PART, MAX_NAME = 253, 63, 253
MAX_ANNOTATIONS = 262_144
"""Bytes of all keys and values together."""

SUBDOMAIN = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
CHARACTERS = "must consist of alphanumeric characters, '-', '_' or '.'"
LABEL = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"


def qualified(key: str) -> str:
    """What is wrong with a qualified name (`prefix/name`), or ''."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return f"a qualified name {CHARACTERS}, with an optional DNS subdomain prefix and '/'"
    if slash and not prefix:
        return "prefix part must be non-empty"
    if len(prefix) > MAX_PREFIX:
        return f"prefix part must be no more than {MAX_PREFIX} characters"
    if prefix and not DNS_NAME.match(prefix):
        return f"prefix part {SUBDOMAIN}"
    if not name:
        return "name part must be non-empty"
    if len(name) > MAX_NAME_PART:
        return f"name part must be no more than {MAX_NAME_PART} characters"
    return "" if NAME_PART.match(name) else f"name part {CHARACTERS}"


def metadata(obj: Json) -> list[Fault]:
    """What is wrong with name, labels, annotations and finalizers."""
    meta, faults = obj["metadata"], []
    if not DNS_NAME.match(meta["name"]):
        faults.append(Fault("metadata.name", "Invalid value", SUBDOMAIN, value=meta["name"]))
    elif len(meta["name"]) > MAX_NAME:
        faults.append(Fault("metadata.name", "Too long", f"may not be more than {MAX_NAME} bytes"))
    carried = meta.get("annotations") or {}
    # Annotation keys are compared in lower case, labels are not.
    faults += _names("metadata.annotations", {key: qualified(key.lower()) for key in carried})
    faults += _names("metadata.labels", {key: qualified(key) for key in meta.get("labels") or {}})
    faults += _names("metadata.labels", {each: _label(each) for each in (meta.get("labels") or {}).values()})
    faults += _names("metadata.finalizers", {each: qualified(each) for each in meta.get("finalizers") or []})
    if sum(len(key.encode()) + len(value.encode()) for key, value in carried.items()) > MAX_ANNOTATIONS:
        faults.append(Fault("metadata.annotations", "Too long", f"may not be more than {MAX_ANNOTATIONS} bytes"))
    return faults


def _names(field: str, reasons: dict[str, str]) -> list[Fault]:
    return [Fault(field, "Invalid value", why, value=value) for value, why in reasons.items() if why]


def _label(value: str) -> str:
    good = not value or (len(value) <= MAX_NAME_PART and NAME_PART.match(value))
    return "" if good else f"a valid label must be an empty string or {CHARACTERS.removeprefix('must ')}"


FROZEN = ("uid", "name", "namespace")
SERVERS_OWN = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


def keep_metadata(before: Json, after: Json) -> list[Fault]:
    """Put back what only the server writes, and name what may not change."""
    was, now = before["metadata"], after["metadata"]
    faults = [
        Fault(f"metadata.{key}", "Invalid value", "field is immutable", value=now[key])
        for key in FROZEN
        if key in was and now.get(key, was[key]) != was[key]
    ]
    for key in (*FROZEN, *SERVERS_OWN):
        if key in before["metadata"]:
            after["metadata"][key] = before["metadata"][key]
        else:
            after["metadata"].pop(key, None)
    for key in ("labels", "annotations", "finalizers", "ownerReferences"):
        if not after["metadata"].get(key):
            after["metadata"].pop(key, None)
    return faults
