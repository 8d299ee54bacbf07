"""Read the spec of a ResourceClaim into claims, in our words (class `sluice.dev`) or in NVIDIA's.

Sources: k8s.io/api/resource/v1 (types.go), kubernetes-sigs/dra-driver-nvidia-gpu."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Any

from msgspec.structs import replace

from sluice.contracts.dra.device_classes import Kind, class_kind
from sluice.contracts.dra.names import DRIVER
from sluice.contracts.dra.request_claims import REQUESTS_MAX, Context, claims_of, opaque_parameters
from sluice.contracts.dra.requested import Asked, check_kinds, check_names, classes_named, requests_of
from sluice.contracts.dra.slice_request import ClaimRequests, NotOurs, Options, Parameters, options_of, read_parameters
from sluice.contracts.kube.object_fields import Fields, named
from sluice.contracts.messages import Claim
from sluice.contracts.request_syntax import RequestLimits
from sluice.contracts.request_syntax.device_limit import may_be_instances, too_many
from sluice.contracts.request_syntax.source_text import SourceValue, did_you_mean, never_raising
from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel

PARENT = "gpu.nvidia.com/parentUUID"
NUMA = "resource.kubernetes.io/numaNode"
_KNOWN = (PARENT, NUMA)


@dataclass(frozen=True, slots=True)
class Binding:
    """Groups of requests whose devices are on one GPU, and requests whose devices are on one NUMA node."""

    same_gpu: tuple[tuple[str, ...], ...] = ()
    numa_bind: frozenset[str] = frozenset()


def read_constraints(
    constraints: Sequence[Fields], mains: Mapping[str, str], options: Mapping[str, tuple[Claim, ...]]
) -> Binding:
    groups: list[tuple[str, ...]] = []
    numa: set[str] = set()
    for each in constraints:
        each.only(("requests", "matchAttribute", "distinctAttribute"))
        if each.has("distinctAttribute"):
            why = "Sluice cannot keep devices apart by an attribute"
            right = "no distinctAttribute; a GPU policy such as spread chooses GPUs (docs/policies.md)"
            raise each.at("distinctAttribute").unsupported(why, right)
        listed = [
            named(written, (*dict.fromkeys(mains.values()), *mains), "request") for written in each.texts("requests")
        ]
        concerned = tuple(name for name, main in mains.items() if not listed or name in listed or main in listed)
        attribute = each.text("matchAttribute")
        if attribute == PARENT:
            _check_instances(each, concerned, options)
            if len(concerned) > 1 or any(claim.gpus > 1 for name in concerned for claim in options[name]):
                groups.append(concerned)
        elif attribute == NUMA and len({mains[name] for name in concerned}) == 1:
            numa.update(concerned)
        elif attribute == NUMA:
            why = "Sluice binds the devices of one request to a NUMA node, not those of several"
            raise each.at("matchAttribute").unsupported(why, "one request with a count")
        else:
            why = f"Sluice does not match devices by it{did_you_mean(attribute, _KNOWN)}"
            raise each.at("matchAttribute").unsupported(why, " or ".join(_KNOWN))
    return Binding(tuple(groups), frozenset(numa))


def _check_instances(each: Fields, concerned: Sequence[str], options: Mapping[str, tuple[Claim, ...]]) -> None:
    for name in concerned:
        if not all(may_be_instances(claim) and claim.modes == ("exclusive",) for claim in options[name]):
            why = f"{name} is no MIG device, and only those have a parent"
            raise each.at("matchAttribute").contradiction(why, "the requests of MIG devices alone")


ALTERNATIVES_MAX = 32
"""Ways to serve one claim, each tried in turn."""
DEFAULT_LIMITS = RequestLimits()


@never_raising
def read_claim(
    spec: Mapping[str, Any],
    classes: Mapping[str, Mapping[str, Any]],
    *,
    prefix: str = "",
    path: str = "spec",
    models: tuple[GpuModel, ...] | None = None,
    limits: RequestLimits = DEFAULT_LIMITS,
    uid: int | None = None,
) -> ClaimRequests | NotOurs:
    """Claims of a ResourceClaim's `spec` (resource.k8s.io/v1 or v1beta2; v1beta1's flat requests, too). Never raises.

    `classes` are the specs of the DeviceClasses that exist, by name. A Claim's `container` is `<prefix><request>`, of a
    prioritized list `<prefix><request>/<subrequest>`. `path` begins the field of a refusal (`spec.spec` in a template).
    `models` are the known GPUs (default: the catalog). `uid` is the user of the pod, for shares."""
    known = models if models is not None else catalog()
    return _claim(Fields(path, spec), Context(classes, known, limits, prefix, uid))


def _claim(spec: Fields, context: Context) -> ClaimRequests | NotOurs:
    kinds = {name: class_kind(name, context.classes) for name in classes_named(spec.values)}
    if not {Kind.OURS, Kind.NVIDIA} & set(kinds.values()):
        return NotOurs(tuple(name for name, kind in kinds.items() if kind is Kind.UNKNOWN))
    spec.only(("devices",))
    devices = spec.inside("devices")
    devices.only(("requests", "constraints", "config"))
    asked = [each for request in devices.listed("requests") for each in requests_of(request, context.classes)]
    check_kinds(asked)
    if len(asked) > REQUESTS_MAX:
        raise devices.at("requests").too_large(f"{len(asked)} requests in one claim", f"at most {REQUESTS_MAX}")
    names = check_names(asked, devices)
    config = devices.listed("config")
    for each in config:
        each.only(("requests", "opaque"))
        for written in each.texts("requests"):
            named(written, names, "request")
    options = {each.name: claims_of(each, config, context) for each in asked}
    binding = read_constraints(devices.listed("constraints"), {each.name: each.main for each in asked}, options)
    ways = _ways(asked, options, binding, devices)
    for way in ways:
        many = too_many(way, context.limits.max_gpus_per_node)
        if many is not None:
            number = SourceValue(devices.at("requests").field, f"{many.asked} devices")
            raise number.too_large("more than one node has", many.allowed)
    keys = {each.name: f"{context.prefix}{each.name}" for each in asked}
    groups = tuple(tuple(keys[name] for name in group) for group in binding.same_gpu)
    return ClaimRequests(ways[0], ways[1:], groups, keys, _options(asked, config), tuple(context.warnings))


def _options(asked: Sequence[Asked], config: Sequence[Fields]) -> Options:
    of_class = [each for one in asked if one.device_class.kind is Kind.OURS for each in one.device_class.config]
    given = Parameters()
    for each in (*of_class, *config):
        parameters = opaque_parameters(each, DRIVER)
        if parameters is not None and not each.texts("requests"):
            given = read_parameters(parameters).over(given)
    return options_of(given)


def _ways(
    asked: Sequence[Asked], options: Mapping[str, tuple[Claim, ...]], binding: Binding, devices: Fields
) -> tuple[tuple[Claim, ...], ...]:
    """Every way to serve all requests, in the order in which they are tried: the first request's wishes count most."""
    by_main: dict[str, list[Claim]] = {}
    for each in asked:
        bound = each.name in binding.numa_bind
        by_main.setdefault(each.main, []).extend(
            replace(claim, numa_bind=True) if bound else claim for claim in options[each.name]
        )
    count = prod(len(each) for each in by_main.values())
    if count > ALTERNATIVES_MAX:
        most = max(by_main, key=lambda main: len(by_main[main]))
        why = f"{count} ways to serve this claim: {most!r} alone may be {len(by_main[most])} kinds of devices"
        raise SourceValue(devices.at("requests").field, most).too_large(
            why, f"at most {ALTERNATIVES_MAX}: select one profile, or list fewer in firstAvailable"
        )
    return tuple(islice(product(*by_main.values()), ALTERNATIVES_MAX))
