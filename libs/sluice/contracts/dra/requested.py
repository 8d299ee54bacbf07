"""The requests of a ResourceClaim as written: names, subrequests of prioritized lists, and their DeviceClasses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.contracts.dra.device_classes import DeviceClass, Kind, device_class
from sluice.contracts.dra.names import DEVICE_CLASS
from sluice.contracts.kube.object_fields import Fields
from sluice.contracts.request_syntax.source_text import SourceValue

_EXACTLY = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
_ANOTHER_CLAIM = "a ResourceClaim of its own for the devices of another driver"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the claim, or a subrequest: `name` as results name it."""

    name: str
    main: str
    fields: Fields
    device_class: DeviceClass


def requests_of(request: Fields, classes: Mapping[str, Mapping[str, Any]]) -> list[Asked]:
    main = request.text("name")
    if not main:
        raise request.at("name").invalid("a request has a name", "for instance gpu")
    if request.has("firstAvailable"):
        request.only(("name", "firstAvailable"))
        found = []
        listed = request.listed("firstAvailable")
        if not listed:
            raise request.at("firstAvailable").invalid("it is empty", "at least one subrequest")
        for each in listed:
            each.only(("name", *(key for key in _EXACTLY if key != "adminAccess")))
            sub = each.text("name")
            if not sub:
                raise each.at("name").invalid("a subrequest has a name", "for instance small")
            found.append(Asked(f"{main}/{sub}", main, each, _class_of(each, classes)))
        return found
    if request.has("exactly") or not request.has("deviceClassName"):
        request.only(("name", "exactly", "firstAvailable"))
        exactly = request.inside("exactly")
        exactly.only(_EXACTLY)
    else:  # resource.k8s.io/v1beta1
        request.only(("name", *_EXACTLY))
        exactly = request
    return [Asked(main, main, exactly, _class_of(exactly, classes))]


def _class_of(request: Fields, classes: Mapping[str, Mapping[str, Any]]) -> DeviceClass:
    if not request.text("deviceClassName"):
        right = f"{DEVICE_CLASS}, or a DeviceClass of the cluster"
        raise request.at("deviceClassName").invalid("a request names a class", right)
    return device_class(request.at("deviceClassName"), classes)


def check_kinds(asked: Sequence[Asked]) -> None:
    """Refuse a claim of which only a part is ours: nothing else would allocate the rest."""
    for each in asked:
        kind = each.device_class.kind
        if kind in {Kind.OTHER, Kind.UNKNOWN}:
            why = f"the claim also has requests that Sluice serves, and this class is {kind.value}"
            raise each.fields.at("deviceClassName").unsupported(why, _ANOTHER_CLAIM)


def check_names(asked: Sequence[Asked], devices: Fields) -> tuple[str, ...]:
    """The names that configurations and constraints may have: requests, and their subrequests."""
    names = [each.name for each in asked]
    mains = list(dict.fromkeys(each.main for each in asked))
    twice = next((name for name in names if names.count(name) > 1), "")
    if not twice and len(devices.listed("requests")) > len(mains):
        twice = next(
            name for name in mains if [each.text("name") for each in devices.listed("requests")].count(name) > 1
        )
    if twice:
        raise SourceValue(devices.at("requests").field, twice).contradiction(
            "two requests of one name", "another name for each"
        )
    return tuple(dict.fromkeys((*mains, *names)))


def classes_named(spec: Mapping[str, Any]) -> Iterator[str]:
    """The DeviceClasses that a claim's spec names, as far as it can be read: for a caller that fetches them."""
    devices = spec.get("devices")
    requests = devices.get("requests") if isinstance(devices, Mapping) else None
    for request in requests if isinstance(requests, list) else ():
        if not isinstance(request, Mapping):
            continue
        subs = request.get("firstAvailable")
        for each in (request, request.get("exactly"), *(subs if isinstance(subs, list) else ())):
            name = each.get("deviceClassName") if isinstance(each, Mapping) else None
            if isinstance(name, str):
                yield name
