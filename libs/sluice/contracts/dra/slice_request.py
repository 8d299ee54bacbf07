"""Our own parameters of a ResourceClaim, `apiVersion: sluice.dev/v1, kind: SliceRequest`: the keys of the annotations.

Values may be text, numbers or booleans. Keys of the whole pod hold for the whole claim."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from sluice.contracts.kube.object_fields import Fields
from sluice.contracts.kube.quantities import WHOLE_MAX
from sluice.contracts.messages import NO_LEEWAY, Claim, Leeway, PodGroup
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import mig_resources, pod_options, sluice_keys, source_text, values
from sluice.contracts.request_syntax.keys import SLUICE
from sluice.contracts.request_syntax.pod_request import ContainerRequest, RequestLimits

API_VERSION = "sluice.dev/v1"
KIND = "SliceRequest"
_FIELDS = ("apiVersion", "kind")
_NUMBER = f"{SLUICE}/gpus"


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for the whole request, as in a pod's annotations. Empty: nothing was said."""

    priority: int | None = None
    node_policy: str = ""
    gpu_policy: str = ""
    leeway: Leeway = NO_LEEWAY
    group: PodGroup | None = None


NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Parameters:
    """The keys of one SliceRequest, as `sluice.dev/<key>`, and the path of the object that holds them."""

    path: str = ""
    own: Mapping[str, source_text.SourceValue] = field(default_factory=dict)
    of_pod: Mapping[str, source_text.SourceValue] = field(default_factory=dict)

    def over(self, other: "Parameters") -> "Parameters":
        """These keys, and the other's where these have none."""
        return Parameters(self.path or other.path, {**other.own, **self.own}, {**other.of_pod, **self.of_pod})


def read_parameters(given: Fields) -> Parameters:
    """The keys of opaque parameters; their values are read later. Raises RequestSyntaxError."""
    if given.text("apiVersion") != API_VERSION:
        raise given.at("apiVersion").invalid("not a version that is read", API_VERSION)
    given.choice("kind", (KIND,))
    own: dict[str, source_text.SourceValue] = {}
    of_pod: dict[str, source_text.SourceValue] = {}
    for key, raw in given.values.items():
        if key in _FIELDS or source_text.is_blank(raw):
            continue
        if key not in sluice_keys.KEYS:
            why = f"there is no such key{source_text.did_you_mean(key, sluice_keys.KEYS)}"
            raise given.at(key).unknown(why, ", ".join(sluice_keys.KEYS))
        if isinstance(raw, Mapping | list):
            right = "a text with commas" if isinstance(raw, list) else "a text or a number"
            raise given.at(key).invalid("one value is wanted", right)
        kept = of_pod if key in sluice_keys.POD_KEYS else own
        kept[key] = source_text.SourceValue(
            f"{SLUICE}/{key}", raw if isinstance(raw, str) else source_text.source_text_of(raw)
        )
    return Parameters(given.path, own, of_pod)


def claim_of(
    base: Claim, given: Parameters, count: source_text.SourceValue, uid: int | None, limits: RequestLimits
) -> Claim:
    """The claim of our class with the container and number (from `count`) of `base`. Raises RequestSyntaxError."""
    try:
        return _claim(ContainerRequest(base.container, uid=uid), given, base.gpus, limits)
    except source_text.RequestSyntaxError as wrong:
        refusal = wrong.refusal
        if refusal.field == _NUMBER and "gpus" not in given.own:
            refusal = replace(refusal, field=count.field)
        raise source_text.RequestSyntaxError(_without_prefix(refusal, given.path)) from None


def _claim(container: ContainerRequest, given: Parameters, count: int, limits: RequestLimits) -> Claim:
    own = {key: each for key, each in given.own.items() if key != sluice_keys.DRIVER_CAPABILITIES}
    if count > 1:
        if "gpus" in own and own["gpus"].text() != str(count):
            raise own["gpus"].contradicts(
                source_text.SourceValue("count", count), "these say the same thing", "one of them"
            )
        own["gpus"] = source_text.SourceValue(_NUMBER, str(count))
    claim = sluice_keys.claim_of(container, own, limits)
    mig_resources.check_memory(claim, own)
    said = given.own.get(sluice_keys.DRIVER_CAPABILITIES)
    by_container = {container.name: said} if said is not None else {}
    chosen = pod_options.chosen_for(container, claim, by_container, limits)
    return replace(claim, driver_capabilities=chosen) if chosen else claim


def options_of(given: Parameters) -> Options:
    """What the keys of the whole pod say. Raises RequestSyntaxError."""
    said = given.of_pod
    try:
        return Options(
            priority=values.whole(said["priority"], -WHOLE_MAX, WHOLE_MAX) if "priority" in said else None,
            node_policy=values.node_policy(said["node-policy"]) if "node-policy" in said else "",
            gpu_policy=values.gpu_policy(said["gpu-policy"]) if "gpu-policy" in said else "",
            leeway=pod_options.leeway_of(said),
            group=pod_options.group_of(said),
        )
    except source_text.RequestSyntaxError as wrong:
        raise source_text.RequestSyntaxError(_without_prefix(wrong.refusal, given.path)) from None


def _without_prefix(refusal: Refusal, path: str) -> Refusal:
    """A refusal in the words of annotations, in those of parameters."""
    prefix = f"{SLUICE}/"
    field_name = refusal.field
    return replace(
        refusal,
        field=f"{path}.{field_name.removeprefix(prefix)}" if field_name.startswith(prefix) and path else field_name,
        message=refusal.message.replace(prefix, ""),
        allowed=refusal.allowed.replace(prefix, ""),
    )


@dataclass(frozen=True, slots=True)
class ClaimRequests:
    """A claim of ours, with the fields of AllocationRequested.

    `requests`: its request, or `request/subrequest`, -> the `container` key of its Claim."""

    claims: tuple[Claim, ...]
    alternatives: tuple[tuple[Claim, ...], ...] = ()
    same_gpu: tuple[tuple[str, ...], ...] = ()
    requests: Mapping[str, str] = field(default_factory=dict)
    options: Options = NO_OPTIONS
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotOurs:
    """A claim for other drivers. It may be ours if `unknown` names DeviceClasses that were not found."""

    unknown: tuple[str, ...] = ()
