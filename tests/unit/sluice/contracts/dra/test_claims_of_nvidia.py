"""ResourceClaims in NVIDIA's words: which devices they become, and how mistakes are refused."""

import pytest
from unit.sluice.contracts.dra.claim_specs import GPU, MIG, body, claim, mps, nvidia, prioritized, request

from sluice.contracts.dra.reader import read_claim
from sluice.contracts.dra.slice_request import ClaimRequests, NotOurs
from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits

NAMED = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig' && {}"


def ways(spec, classes=None, **more):
    found = read_claim(spec, classes or {}, **more)
    assert isinstance(found, ClaimRequests), found
    return [found.claims, *found.alternatives]


def only(spec, classes=None, **more) -> Claim:
    """The claim of a spec that can be served in one way, with one request."""
    ((found,),) = ways(spec, classes, **more)
    return found


def sentence(spec, classes=None, **more) -> str:
    found = read_claim(spec, classes or {}, **more)
    assert isinstance(found, Refusal), found
    return found.sentence()


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        (request("r"), {}),
        (request("r", count=2, allocationMode="ExactCount"), {"gpus": 2}),
        (request("r", tolerations=[{"operator": "Exists"}]), {}),
        (request("r", MIG, "A.profile == '1g.5gb'"), {"profile": "1g.5gb"}),
        (request("r", MIG, "A.profile == '1g.5gb'", count=3), {"profile": "1g.5gb", "gpus": 3}),
        (request("r", MIG, "A.profile == '8g.999gb'"), {"profile": "8g.999gb"}),
        (request("r", MIG, "'1g.5gb+me' == A.profile"), {"profile": "1g.5gb+me"}),
        (
            request("r", GPU, "A.productName == 'NVIDIA A30'"),
            {"only": DeviceFilter(models=("NVIDIA A30",), not_models=("NVIDIA A30-PCIE-24GB",))},
        ),
        (request("r", GPU, "A.productName == 'NVIDIA L4'"), {"only": DeviceFilter(models=("l4",))}),
        (
            request("r", GPU, "A.productName == 'NVIDIA H200'"),
            {"only": DeviceFilter(models=("NVIDIA H200",), not_models=("NVIDIA H200 NVL",))},
        ),
        (request("r", GPU, "A.architecture == 'Volta'"), {"only": DeviceFilter(models=("v100-16gb", "v100-32gb"))}),
        (
            request("r", GPU, "A.cudaComputeCapability.isGreaterThan(semver('12.0.0'))"),
            {"only": DeviceFilter(models=("gb10",))},
        ),
        (request("r", GPU, "A.cudaComputeCapability == semver('7.5.0')"), {"only": DeviceFilter(models=("t4",))}),
        (
            request("r", GPU, "C.memory.compareTo(quantity('250Gi')) > 0"),
            {"only": DeviceFilter(models=("b300-269gb", "gb300-278gb"))},
        ),
        (
            request("r", GPU, capacity={"requests": {"memory": "250Gi"}}),
            {"only": DeviceFilter(models=("b300-269gb", "gb300-278gb"))},
        ),
        (
            request("r", MIG, "A.profile == '1g.24gb'", capacity={"requests": {"gpu.nvidia.com/multiprocessors": 30}}),
            {"profile": "1g.24gb", "only": DeviceFilter(models=("rtx-pro-6000-blackwell-96gb",))},
        ),
        (request("r", GPU, "A.uuid == 'GPU-1'"), {"only": DeviceFilter(uuids=("GPU-1",))}),
        (request("r", GPU, "A.uuid in ['GPU-1', \"GPU-2\"]"), {"only": DeviceFilter(uuids=("GPU-1", "GPU-2"))}),
        (request("r", GPU, "A.uuid != 'GPU-1'"), {"only": DeviceFilter(not_uuids=("GPU-1",))}),
        (request("r", GPU, "!('GPU-1' == A.uuid)"), {"only": DeviceFilter(not_uuids=("GPU-1",))}),
        (
            request("r", MIG, "A.parentUUID == 'GPU-1' && A.profile == '1g.5gb'"),
            {"profile": "1g.5gb", "only": DeviceFilter(uuids=("GPU-1",))},
        ),
    ],
)
def test_a_selector_becomes_what_the_allocator_understands(asked, fields):
    """Sizes, models and UUIDs of a selector are those of the claim: no more, no less."""
    assert only(claim(asked)) == Claim(container="r", **fields)


def test_what_is_common_to_many_profiles_becomes_the_smallest_of_each_model():
    """A claim for any MIG device gets one wherever there is MIG, without dozens of searches."""
    profiles = [one.profile for (one,) in ways(claim(request("r", MIG)))]

    assert profiles[0] == "1g.5gb"
    assert set(profiles) == {f"1g.{gb}gb" for gb in (5, 6, 10, 12, 18, 23, 24, 34, 35)}


def test_some_profiles_are_all_tried_from_small_to_large():
    """A list of profiles is a list of wishes, whatever its order."""
    found = ways(claim(request("r", MIG, "A.profile in ['3g.20gb', '1g.5gb+me', '1g.5gb', '2g.10gb']")))

    assert [one.profile for (one,) in found] == ["1g.5gb", "2g.10gb", "3g.20gb", "1g.5gb+me"]


def test_a_prioritized_list_is_tried_in_its_order():
    """The first wish is served first; each way names the subrequest that it serves."""
    spec = claim(
        prioritized("big", whole=body(), half=body(MIG, "A.profile == '3g.20gb'")),
        request("one", MIG, "A.profile == '1g.5gb'"),
    )

    found = read_claim(spec, {}, prefix="p.")

    assert [[each.container for each in way] for way in (found.claims, *found.alternatives)] == [
        ["p.big/whole", "p.one"],
        ["p.big/half", "p.one"],
    ]
    assert found.requests == {"big/whole": "p.big/whole", "big/half": "p.big/half", "one": "p.one"}


def test_devices_of_one_parent_are_on_one_gpu():
    """`requests: []` means all; a prioritized list brings all of its subrequests."""
    small, medium = body(MIG, "A.profile == '1g.5gb'"), body(MIG, "A.profile == '2g.10gb'")
    spec = claim(
        request("a", MIG, "A.profile == '1g.5gb'"),
        prioritized("b", small=small, medium=medium),
        constraints=[{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}],
    )

    assert read_claim(spec, {}).same_gpu == (("a", "b/small", "b/medium"),)


def test_devices_of_one_request_may_be_on_one_numa_node():
    constraint = {"requests": ["r"], "matchAttribute": "resource.kubernetes.io/numaNode"}

    assert only(claim(request("r", count=2), constraints=[constraint])).numa_bind


def test_a_constraint_on_one_device_says_nothing():
    spec = claim(
        request("r", MIG, "A.profile == '1g.5gb'"), constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}]
    )

    assert read_claim(spec, {}).same_gpu == ()


def test_a_class_of_the_clusters_own_that_selects_nvidias_devices_is_served():
    classes = {
        "small": {
            "selectors": [
                {"cel": {"expression": NAMED.format("device.attributes['gpu.nvidia.com'].profile == '1g.12gb'")}}
            ]
        }
    }

    assert only(claim(request("r", "small")), classes).profile == "1g.12gb"


def test_a_configuration_of_the_claim_comes_before_that_of_its_class():
    classes = {GPU: {"config": [mps(defaultActiveThreadPercentage=10, defaultPinnedDeviceMemoryLimit="1Gi")]}}

    assert only(claim(request("r")), classes).sm_partition == 10
    assert only(claim(request("r"), config=[mps(defaultActiveThreadPercentage=30)]), classes).sm_partition == 30


@pytest.mark.parametrize(
    ("spec", "classes", "unknown"),
    [
        (claim(request("r", "other.example")), {"other.example": {}}, ()),
        (claim(request("r", "other.example")), {"other.example": {"selectors": [{"cel": {"expression": "1+"}}]}}, ()),
        (claim(request("r", "later.example")), {}, ("later.example",)),
        ({"devices": {"requests": [{"name": "r", "new": {"deviceClassName": "x"}}], "newer": 1}}, {}, ()),
        ({"resourceClassName": "gpu.nvidia.com"}, {}, ()),
        ({}, {}, ()),
        ({"devices": 5}, {}, ()),
        (
            claim(request("r", "compute-domain-default-channel.nvidia.com")),
            {"compute-domain-default-channel.nvidia.com": {}},
            (),
        ),
    ],
)
def test_a_claim_of_another_driver_is_left_alone(spec, classes, unknown):
    """Whatever it holds: Sluice does not judge what it does not serve."""
    assert read_claim(spec, classes) == NotOurs(unknown)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (nvidia({"kind": "GpuConfig"}), {}),
        (nvidia({"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}), {}),
        (mps(), {"modes": ("mps",), "memory_percentage": 100}),
        (mps(defaultPinnedDeviceMemoryLimit="10Gi"), {"modes": ("mps",), "memory_mib": 10240}),
        (mps(defaultPinnedDeviceMemoryLimit="10M"), {"modes": ("mps",), "memory_mib": 9}),
        (
            mps(defaultActiveThreadPercentage=50),
            {"modes": ("fractional",), "sm_partition": 50, "memory_percentage": 100},
        ),
        (
            mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi", multiUser=False),
            {"modes": ("fractional",), "sm_partition": 50, "memory_mib": 10240},
        ),
        (mps(defaultPerDevicePinnedMemoryLimit={"0": "2Gi"}), {"modes": ("mps",), "memory_mib": 2048}),
        (
            mps(defaultPinnedDeviceMemoryLimit="1Gi", defaultPerDevicePinnedMemoryLimit={"0": "2Gi"}),
            {"modes": ("mps",), "memory_mib": 2048},
        ),
        (mps("other"), {}),
        (mps("r", defaultPinnedDeviceMemoryLimit="1Gi"), {"modes": ("mps",), "memory_mib": 1024}),
        (mps(kind="MigDeviceConfig"), {}),
        ({"opaque": {"driver": "other.example", "parameters": {"any": 1}}}, {}),
    ],
)
def test_a_configuration_of_nvidia_becomes_a_mode_with_its_limits(config, fields):
    """MPS with limits is a share of ours; in turns, the device is the claim's own."""
    spec = claim(request("r"), request("other", MIG, "A.profile == '1g.5gb'"), config=[config])
    if "other" in config.get("requests", ()):
        spec["devices"]["requests"][1] = request("other")
    (found, _), *_ = ways(spec, uid=7)
    shared = {"uid": 7} if fields else {}

    assert found == Claim(container="r", **fields, **shared)


def test_what_cannot_be_done_to_the_letter_is_said():
    """A claim is served with a warning rather than silently otherwise."""
    slow = nvidia(
        {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}
    )
    spec = claim(
        request("turns", capacity={"requests": {"memory": "4Gi"}}),
        request("limits"),
        request("mig", MIG, "A.profile == '1g.5gb'"),
        config=[slow, mps("limits", defaultPinnedDeviceMemoryLimit="1Gi"), mps("mig", kind="MigDeviceConfig")],
    )

    assert read_claim(spec, {}).warnings == (
        (
            "spec.devices.requests[0].exactly.capacity: turns gets whole GPUs with at least this memory; for a part of "
            "one, class sluice.dev with mode mps and memory"
        ),
        "turns: its containers take turns at the driver's own pace; interval Long is not set",
        "limits: a share with these limits, beside others of the namespace and user; each process has them",
        (
            "mig: its containers take turns on the MIG device, without MPS; for MPS in a MIG instance, class "
            "sluice.dev with mode mps and memory"
        ),
    )


ONE = "spec.devices.requests[0].exactly"
CEL = f"{ONE}.selectors[0].cel.expression"
PARAMETERS = "spec.devices.config[0].opaque.parameters"
KNOWN = (
    "of gpu.nvidia.com: attributes type, uuid, parentUUID, profile, productName, architecture, cudaComputeCapability; "
    "capacities memory, multiprocessors, copyEngines, decoders, encoders, jpegEngines, ofaEngines"
)
EARLY = "Sluice chooses the device before the node is known"
NO_SUCH = "no GPU that Sluice knows has such a device"
AN_EXPRESSION = "an expression over device.driver, device.attributes and device.capacity that is true or false"
IN_DOCS = "a profile or productName of docs/models.md; GPUs that are not in it by class sluice.dev and gpu-model"


@pytest.mark.parametrize(
    ("spec", "field", "why", "right"),
    [
        (
            claim(request("r", adminAccess=True)),
            f"{ONE}.adminAccess",
            "Sluice gives no access to devices that others use",
            "no adminAccess, and a device of its own",
        ),
        (
            claim(request("r", allocationMode="All")),
            f"{ONE}.allocationMode",
            "Sluice gives a number of devices, never all of a node",
            "ExactCount with a count",
        ),
        (claim(request("r", allocationMode="Some")), f"{ONE}.allocationMode", "there is no such choice", "ExactCount"),
        (claim(request("r", count=0)), f"{ONE}.count", "out of range", "a whole number from 1 to 32"),
        (claim(request("r", count="2")), f"{ONE}.count", "not a whole number", "a whole number from 1 to 32"),
        (
            claim(request("r", "vfio.gpu.nvidia.com")),
            f"{ONE}.deviceClassName",
            "Sluice does not hand GPUs to virtual machines (vfio)",
            "gpu.nvidia.com, mig.nvidia.com or sluice.dev",
        ),
        (
            claim(request("r"), request("s", "other.example")),
            "spec.devices.requests[1].exactly.deviceClassName",
            "the claim also has requests that Sluice serves, and this class is not found",
            "a ResourceClaim of its own for the devices of another driver",
        ),
        (
            claim(request("r"), {"name": "s", "exactly": {}}),
            "spec.devices.requests[1].exactly.deviceClassName",
            "a request names a class",
            "sluice.dev, or a DeviceClass of the cluster",
        ),
        (claim(request("")), "spec.devices.requests[0].name", "a request has a name", "for instance gpu"),
        (
            claim(request("r"), request("r")),
            "spec.devices.requests",
            "two requests of one name",
            "another name for each",
        ),
        (
            claim(request("r"), {"name": "s", "firstAvailable": []}),
            "spec.devices.requests[1].firstAvailable",
            "it is empty",
            "at least one subrequest",
        ),
        (
            claim(request("r", counts=2)),
            f"{ONE}.counts",
            "there is no such field; did you mean count?",
            "deviceClassName, selectors, allocationMode, count, adminAccess, tolerations, capacity",
        ),
        (
            claim(request("r", capacity={"requests": {"memry": "1Gi"}})),
            f"{ONE}.capacity.requests[memry]",
            "there is no capacity of this name; did you mean memory?",
            "memory, multiprocessors, copyEngines, decoders, encoders, jpegEngines, ofaEngines",
        ),
        (
            claim(request("r", capacity={"requests": {"memory": "lots"}})),
            f"{ONE}.capacity.requests.memory",
            "not a quantity",
            "a quantity, for instance 10Gi",
        ),
        (
            claim(request("r", capacity={"requests": {"memory": "900Gi"}})),
            f"{ONE}.capacity.requests.memory",
            NO_SUCH,
            IN_DOCS,
        ),
        (
            claim(request("r", GPU, "A.index == 0")),
            CEL,
            "no device has the attribute index: NVIDIA's driver no longer publishes it",
            "uuid (parentUUID of a MIG device), or no such condition",
        ),
        (
            claim(request("r", GPU, "A.brand == 'Tesla'")),
            CEL,
            "Sluice cannot select by brand: it does not follow from the model",
            "productName or architecture",
        ),
        (
            claim(request("r", GPU, "A.driverVersion.major() == 570")),
            CEL,
            f"Sluice cannot select by driverVersion: {EARLY}",
            "a node selector on the pod, by a label such as nvidia.com/cuda.driver-version.full",
        ),
        (
            claim(request("r", GPU, "A.cudaDriverVersion.major() == 12")),
            CEL,
            f"Sluice cannot select by cudaDriverVersion: {EARLY}",
            "a node selector on the pod, by a label such as nvidia.com/cuda.runtime-version.full",
        ),
        (
            claim(request("r", GPU, "A.addressingMode == 'HMM'")),
            CEL,
            f"Sluice cannot select by addressingMode: {EARLY}",
            "a node selector on the pod",
        ),
        (
            claim(request("r", GPU, "device.attributes['resource.kubernetes.io'].pciBusID == '0000:01:00.0'")),
            CEL,
            f"Sluice cannot select by pciBusID: {EARLY}",
            "uuid (parentUUID of a MIG device)",
        ),
        (
            claim(request("r", GPU, "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:01'")),
            CEL,
            f"Sluice cannot select by pcieRoot: {EARLY}",
            "no such condition",
        ),
        (
            claim(request("r", GPU, "device.attributes['resource.kubernetes.io'].numaNode == 0")),
            CEL,
            f"Sluice cannot select by numaNode: {EARLY}",
            "a constraint with matchAttribute resource.kubernetes.io/numaNode for one request",
        ),
        (
            claim(request("r", GPU, "A.uuid.startsWith('GPU-1')")),
            CEL,
            "a UUID can only be compared as a whole",
            "uuid == 'GPU-...', !=, or in ['GPU-...', 'GPU-...']; parentUUID for MIG devices",
        ),
        (
            claim(request("r", MIG, "A.parentUUID == 'GPU-1' ? A.profile == '1g.5gb' : A.parentUUID == 'GPU-2'")),
            CEL,
            "it selects different devices on different GPUs",
            "one request for each, or firstAvailable",
        ),
        (claim(request("r", MIG, "A.profil == '1g.5gb'")), CEL, "no device has 'profil'; did you mean profile?", KNOWN),
        (
            claim(request("r", GPU, "device.attributes['other.example'].thing == 1")),
            CEL,
            "no device has 'thing'",
            KNOWN,
        ),
        (claim(request("r", MIG, "A.profile == '1G.5GB'")), CEL, f"{NO_SUCH}; did you mean 1g.5gb?", IN_DOCS),
        (claim(request("r", MIG, "A.profile == '1c.3g.20gb'")), CEL, f"{NO_SUCH}; did you mean 3g.20gb?", IN_DOCS),
        (claim(request("r", GPU, "A.productName == 'H10O'")), CEL, f"{NO_SUCH}; did you mean h100-sxm-80gb?", IN_DOCS),
        (
            claim(request("r", GPU, "C.memory > 5")),
            CEL,
            "it cannot be evaluated: No matching overloads found : _>_(map, int64)",
            AN_EXPRESSION,
        ),
        (
            claim(request("r", GPU, "C.memory.isGreaterThan(quantity('much'))")),
            CEL,
            "it cannot be evaluated: 'much' is not a quantity like 40Gi: not a quantity",
            AN_EXPRESSION,
        ),
        (
            claim(request("r", GPU, "A.productName")),
            CEL,
            "it cannot be evaluated: it is neither true nor false",
            AN_EXPRESSION,
        ),
        (
            claim(request("r", GPU, "A.productName == 'NVIDIA GB200' && C.memory.isGreaterThan(quantity('186Gi'))")),
            CEL,
            "no list of models is exactly those that match it",
            "a selector by whole product names, productName == '...'",
        ),
        (
            claim(request("r", GPU, "found(1)")),
            CEL,
            "it cannot be evaluated: undeclared reference to 'found'",
            AN_EXPRESSION,
        ),
        (claim(request("r", GPU, " ")), CEL, "it is empty", "a CEL expression"),
        (
            claim(request("r", GPU, *(f"{'true && ' * 1000}{each} == {each}" for each in range(3)))),
            CEL.replace("[0].cel", "[2].cel"),
            "the selectors of this request have",
            "at most 16384",
        ),
        (
            claim(request("r", MIG), request("s", MIG)),
            "spec.devices.requests",
            "81 ways to serve this claim: 'r' alone may be 9 kinds of devices",
            "at most 32: select one profile, or list fewer in firstAvailable",
        ),
        (claim(request("r", count=9)), "spec.devices.requests", "more than one node has", "1 to 8 over all containers"),
        (
            claim(request("r"), constraints=[{"requests": ["x"], "matchAttribute": "gpu.nvidia.com/parentUUID"}]),
            "spec.devices.constraints[0].requests[0]",
            "there is no request of this name",
            "r",
        ),
        (
            claim(request("r", count=2), constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}]),
            "spec.devices.constraints[0].matchAttribute",
            "r is no MIG device, and only those have a parent",
            "the requests of MIG devices alone",
        ),
        (
            claim(request("r", count=2), constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUId"}]),
            "spec.devices.constraints[0].matchAttribute",
            "Sluice does not match devices by it; did you mean gpu.nvidia.com/parentUUID?",
            "gpu.nvidia.com/parentUUID or resource.kubernetes.io/numaNode",
        ),
        (
            claim(request("r"), request("s"), constraints=[{"matchAttribute": "resource.kubernetes.io/numaNode"}]),
            "spec.devices.constraints[0].matchAttribute",
            "Sluice binds the devices of one request to a NUMA node, not those of several",
            "one request with a count",
        ),
        (
            claim(request("r", count=2), constraints=[{"distinctAttribute": "gpu.nvidia.com/parentUUID"}]),
            "spec.devices.constraints[0].distinctAttribute",
            "Sluice cannot keep devices apart by an attribute",
            "no distinctAttribute; a GPU policy such as spread chooses GPUs (docs/policies.md)",
        ),
        (
            claim(request("r"), config=[mps("x")]),
            "spec.devices.config[0].requests[0]",
            "there is no request of this name",
            "r",
        ),
        (
            claim(request("r"), config=[mps("r", kind="MigDeviceConfig")]),
            f"{PARAMETERS}.kind",
            "r is a whole GPU",
            "GpuConfig",
        ),
        (
            claim(request("r", MIG, "A.profile == '1g.5gb'"), config=[mps("r")]),
            f"{PARAMETERS}.kind",
            "r is a MIG device",
            "MigDeviceConfig",
        ),
        (
            claim(
                request("r", MIG, "A.profile == '1g.5gb'"),
                config=[mps("r", kind="MigDeviceConfig", defaultActiveThreadPercentage=50)],
            ),
            f"{PARAMETERS}.sharing.mpsConfig.defaultActiveThreadPercentage",
            "a MIG device of a named profile has no MPS server: Sluice chooses the instances in which shares live",
            "class sluice.dev with mode mps and memory, or mode fractional with sm-partition; or no limits",
        ),
        (
            claim(request("r"), config=[nvidia({"kind": "GpuConfig", "apiVersion": "v1"})]),
            f"{PARAMETERS}.apiVersion",
            "not a version that is read",
            "resource.nvidia.com/v1beta1",
        ),
        (
            claim(request("r"), config=[nvidia({"kind": "GpuConfg"})]),
            f"{PARAMETERS}.kind",
            "there is no such choice; did you mean GpuConfig?",
            "GpuConfig, MigDeviceConfig",
        ),
        (
            claim(request("r"), config=[nvidia({"kind": "VfioDeviceConfig"})]),
            f"{PARAMETERS}.kind",
            "Sluice does not hand GPUs to virtual machines (vfio)",
            "GpuConfig or MigDeviceConfig",
        ),
        (
            claim(request("r"), config=[nvidia({"kind": "ComputeDomainChannelConfig"})]),
            f"{PARAMETERS}.kind",
            "compute domains belong to NVIDIA's own driver",
            "GpuConfig or MigDeviceConfig",
        ),
        (
            claim(request("r"), config=[nvidia({"kind": "GpuConfig", "share": {}})]),
            f"{PARAMETERS}.share",
            "there is no such field; did you mean sharing?",
            "apiVersion, kind, sharing",
        ),
        (
            claim(request("r"), config=[nvidia({"kind": "GpuConfig", "sharing": {"strategy": "Mps"}})]),
            f"{PARAMETERS}.sharing.strategy",
            "there is no such choice",
            "TimeSlicing, MPS",
        ),
        (
            claim(
                request("r"),
                config=[nvidia({"kind": "GpuConfig", "sharing": {"strategy": "MPS", "timeSlicingConfig": {}}})],
            ),
            f"{PARAMETERS}.sharing.timeSlicingConfig",
            f"contradicts {PARAMETERS}.sharing.strategy = 'MPS': it belongs to strategy TimeSlicing",
            "strategy TimeSlicing, or no timeSlicingConfig",
        ),
        (
            claim(
                request("r"),
                config=[
                    nvidia(
                        {
                            "kind": "GpuConfig",
                            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Longer"}},
                        }
                    )
                ],
            ),
            f"{PARAMETERS}.sharing.timeSlicingConfig.interval",
            "there is no such choice; did you mean Long?",
            "Default, Short, Medium, Long",
        ),
        (
            claim(
                request("r"),
                config=[
                    nvidia({"kind": "MigDeviceConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}})
                ],
            ),
            f"{PARAMETERS}.sharing.timeSlicingConfig",
            "there is no such field; did you mean mpsConfig?",
            "strategy, mpsConfig",
        ),
        (
            claim(request("r"), config=[mps(defaultActiveThreadPercentage=0)]),
            f"{PARAMETERS}.sharing.mpsConfig.defaultActiveThreadPercentage",
            "out of range",
            "a whole number from 1 to 100",
        ),
        (
            claim(request("r"), config=[mps(defaultPinnedDeviceMemoryLimit="1k")]),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit",
            "less than one MiB",
            "at least 1Mi",
        ),
        (
            claim(request("r"), config=[mps(defaultPinnedDeviceMemoryLimit="-1Gi")]),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPinnedDeviceMemoryLimit",
            "less than zero",
            "a quantity, for instance 10Gi",
        ),
        (
            claim(request("r"), config=[mps(multiUser=True)]),
            f"{PARAMETERS}.sharing.mpsConfig.multiUser",
            "Sluice serves one user with an MPS server",
            "no multiUser, and the same runAsUser in all containers",
        ),
        (
            claim(request("r"), config=[mps(multiUser="yes")]),
            f"{PARAMETERS}.sharing.mpsConfig.multiUser",
            "neither true nor false",
            "true or false",
        ),
        (
            claim(request("r"), config=[mps(defaultPerDevicePinnedMemoryLimit={"1": "1Gi"})]),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.1",
            "the request has no such device",
            "from 0 to 0",
        ),
        (
            claim(request("r"), config=[mps(defaultPerDevicePinnedMemoryLimit={"GPU-1": "1Gi"})]),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.GPU-1",
            "Sluice chooses the device, so that its UUID is not known",
            "the number of a device, from 0 to 0",
        ),
        (
            claim(request("r", count=2), config=[mps(defaultPerDevicePinnedMemoryLimit={"1": "1Gi"})]),
            f"{PARAMETERS}.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit",
            "the devices of one request have the same limit",
            "defaultPinnedDeviceMemoryLimit, or one request for each device",
        ),
        (
            claim(request("r"), config=[{"opaqe": {}}]),
            "spec.devices.config[0].opaqe",
            "there is no such field; did you mean opaque?",
            "requests, opaque",
        ),
        (claim(request("r"), config={"a": 1}), "spec.devices.config", "not a list", "a list"),
        (claim(request("r"), config=["a"]), "spec.devices.config[0]", "not a mapping", "a mapping"),
        ({"devices": {"requests": [request("r")]}, "more": 1}, "spec.more", "there is no such field", "devices"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_right(spec, field, why, right):
    """A person finds the place in the manifest, and what to write instead."""
    found = sentence(spec)

    assert found.startswith(f"{field} = ")
    assert why in found
    assert found.endswith(f"(allowed: {right})")


def test_a_refusal_in_a_template_or_class_says_where_it_stands():
    """A template's spec is one level deeper; a class is another object."""
    broken = {GPU: {"selectors": [{"cel": {"expression": "1 +"}}]}}

    assert sentence(claim(request("r", count=0)), path="spec.spec").startswith(
        "spec.spec.devices.requests[0].exactly.count"
    )
    assert sentence(claim(request("r")), broken).startswith(
        "DeviceClass gpu.nvidia.com: spec.selectors[0].cel.expression = '1 +'"
    )


@pytest.mark.parametrize("depth", [2, 40])
def test_an_expression_that_would_grow_without_end_is_refused_at_once(depth):
    """Kubernetes stops it by its cost; here its loops are counted."""
    text = "['aaaaaaaa']" + ".map(x, x + x + x + x + x + x + x + x)" * depth + " == []"

    found = read_claim(claim(request("r", GPU, text)), {})

    assert ("loops 40 times" in found.message) == (depth == 40)


def test_more_devices_than_a_node_may_have_are_refused_by_the_configured_limit():
    assert only(claim(request("r", count=9)), limits=RequestLimits(max_gpus_per_node=16)).gpus == 9
