"""Validate ResourceClaims as v1.37.2 does: creation, spec and status (pkg/apis/resource, pkg/registry/resource)."""

from typing import Any

from fake_kube.errors import Fault, Json
from fake_kube.requests import metadata

CLAIMS = "resourceclaims.resource.k8s.io"
TEMPLATES = "resourceclaimtemplates.resource.k8s.io"
REQUESTS_MAX, RESULTS_MAX, RESERVED_MAX, CONFIGS_MAX = 32, 32, 256, 32
ONE_OF = "exactly one of `exactly` or `firstAvailable` is required"
NO_REQUEST = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
NOT_ALLOCATED = "may not be specified when `allocated` is not set"
ONCE = "field cannot be modified once set"
DYING = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"


def new_claim(claim: Json) -> list[Fault]:
    """Fill in the defaults of a new claim; all its faults."""
    return _spec(claim.get("spec") or {}, "spec")


def new_template(template: Json) -> list[Fault]:
    return _spec((template.get("spec") or {}).get("spec") or {}, "spec.spec")


def main(before: Json, after: Json) -> list[Fault]:
    """The faults of an update of a claim's main resource: its spec never changes."""
    if before.get("spec") != after.get("spec"):
        return [Fault("spec", "Invalid value", "field is immutable", value="")]
    return []


def status(before: Json, after: Json) -> list[Fault]:
    """The faults of an update of a claim's status."""
    was, now = before.get("status") or {}, after.get("status") or {}
    reserved, allocation = now.get("reservedFor") or [], now.get("allocation")
    faults = _reserved(reserved)
    if reserved and allocation is None:
        faults.append(Fault("status.reservedFor", "Forbidden", NOT_ALLOCATED))
    elif before["metadata"].get("deletionTimestamp") and any(
        each not in (was.get("reservedFor") or []) for each in reserved
    ):
        faults.append(Fault("status.reservedFor", "Forbidden", DYING))
    if was.get("allocation") is not None and allocation is not None:
        if was["allocation"] != allocation:
            faults.append(Fault("status.allocation", "Invalid value", ONCE, value="null"))
    elif allocation is not None:
        faults += _allocation(allocation, _names(before["spec"]))
    return faults


def binds(before: Json, after: Json) -> bool:
    """Whether an update changes allocation or reservations, which takes the right `resourceclaims/binding`."""
    was, now = before.get("status") or {}, after.get("status") or {}
    return any((was.get(key) or None) != (now.get(key) or None) for key in ("allocation", "reservedFor"))


def _spec(spec: Json, at: str) -> list[Fault]:
    devices = spec.get("devices") or {}
    faults: list[Fault] = []
    seen: set[str] = set()
    for index, request in enumerate(devices.get("requests") or []):
        here, name = f"{at}.devices.requests[{index}]", request.get("name", "")
        if not metadata.DNS_LABEL.match(name):
            faults.append(Fault(f"{here}.name", "Invalid value", metadata.LABEL, value=name))
        if name in seen:
            faults.append(Fault(here, "Duplicate value", "", value=name))
        seen.add(name)
        exact, first = request.get("exactly"), request.get("firstAvailable")
        if exact is None and not first:
            faults.append(Fault(here, "Required value", ONE_OF))
        elif exact is not None and first:
            faults.append(Fault(here, "Invalid value", f"{ONE_OF}, but multiple fields are set", value=""))
        for place, each in [(f"{here}.exactly", exact)] if exact is not None else []:
            faults += _one(each, place)
        for number, each in enumerate(first or []):
            faults += _one(each, f"{here}.firstAvailable[{number}]")
    for field, limit in (("requests", REQUESTS_MAX), ("config", CONFIGS_MAX)):
        if len(devices.get(field) or []) > limit:
            faults.append(Fault(f"{at}.devices.{field}", "Too long", f"must have at most {limit} items"))
    return faults


def _one(request: Json, at: str) -> list[Fault]:
    request.setdefault("allocationMode", "ExactCount")
    if request["allocationMode"] == "ExactCount" and not request.get("count"):
        request["count"] = 1
    name = request.get("deviceClassName", "")
    if not name:
        return [Fault(f"{at}.deviceClassName", "Required value", "")]
    if not metadata.DNS_NAME.match(name):
        return [Fault(f"{at}.deviceClassName", "Invalid value", metadata.SUBDOMAIN, value=name)]
    return []


def _names(spec: Json) -> set[str]:
    found: set[str] = set()
    for request in (spec.get("devices") or {}).get("requests") or []:
        subs = request.get("firstAvailable") or []
        found |= {f"{request['name']}/{each['name']}" for each in subs} if subs else {request["name"]}
    return found


def _reserved(reserved: list[Json]) -> list[Fault]:
    faults = []
    if len(reserved) > RESERVED_MAX:
        faults.append(Fault("status.reservedFor", "Too long", f"must have at most {RESERVED_MAX} items"))
    uids: set[Any] = set()
    for index, each in enumerate(reserved):
        here = f"status.reservedFor[{index}]"
        faults += [
            Fault(f"{here}.{key}", "Required value", "") for key in ("resource", "name", "uid") if not each.get(key)
        ]
        if each.get("uid") in uids:
            faults.append(Fault(here, "Duplicate value", "", value=str(each.get("uid"))))
        uids.add(each.get("uid"))
    return faults


def _allocation(allocation: Json, names: set[str]) -> list[Fault]:
    faults, devices = [], allocation.get("devices") or {}
    results = devices.get("results") or []
    if len(results) > RESULTS_MAX:
        faults.append(Fault("status.allocation.devices.results", "Too long", f"must have at most {RESULTS_MAX} items"))
    for index, result in enumerate(results):
        here = f"status.allocation.devices.results[{index}]"
        if result.get("request") not in names:
            faults.append(Fault(f"{here}.request", "Invalid value", NO_REQUEST, value=str(result.get("request"))))
        for key, form in (("driver", metadata.DNS_NAME), ("pool", metadata.DNS_NAME), ("device", metadata.DNS_LABEL)):
            if not form.match(str(result.get(key, ""))):
                faults.append(Fault(f"{here}.{key}", "Invalid value", metadata.SUBDOMAIN, value=str(result.get(key))))
    for index, config in enumerate(devices.get("config") or []):
        if config.get("source") not in {"FromClass", "FromClaim"}:
            here = f"status.allocation.devices.config[{index}].source"
            supported = 'supported values: "FromClaim", "FromClass"'
            faults.append(Fault(here, "Unsupported value", supported, value=str(config.get("source"))))
    return faults
