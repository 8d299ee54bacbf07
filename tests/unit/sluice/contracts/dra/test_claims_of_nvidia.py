"""ResourceClaims in NVIDIA's terms: which devices they become, and how mistakes are refused."""

import pytest
from factories.text_rows import text_rows
from factories.words import claim_of
from unit.sluice.contracts.dra.claim_specs import GPU, MIG, body, claim, mps, nvidia, prioritized, request, selectors
from yaml import safe_load

from sluice.contracts.dra.reader import read_claim
from sluice.contracts.dra.slice_request import ClaimRequests, NotOurs
from sluice.contracts.messages import Claim
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits

SMALL = "A.profile == '1g.5gb'"
MIG_SMALL = request("r", MIG, SMALL)


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


LARGEST = {"models": ["b300-269gb", "gb300-278gb"]}
SELECTED = [
    ("A.productName == 'NVIDIA A30'", {"models": ["NVIDIA A30"], "not_models": ["NVIDIA A30-PCIE-24GB"]}),
    ("A.productName == 'NVIDIA L4'", {"models": ["l4"]}),
    ("A.productName == 'NVIDIA H200'", {"models": ["NVIDIA H200"], "not_models": ["NVIDIA H200 NVL"]}),
    ("A.architecture == 'Volta'", {"models": ["v100-16gb", "v100-32gb"]}),
    ("A.cudaComputeCapability.isGreaterThan(semver('12.0.0'))", {"models": ["gb10"]}),
    ("A.cudaComputeCapability == semver('7.5.0')", {"models": ["t4"]}),
    ("C.memory.compareTo(quantity('250Gi')) > 0", LARGEST),
    ("A.uuid == 'GPU-1'", {"uuids": ["GPU-1"]}),
    ("A.uuid in ['GPU-1', \"GPU-2\"]", {"uuids": ["GPU-1", "GPU-2"]}),
    ("A.uuid != 'GPU-1'", {"not_uuids": ["GPU-1"]}),
    ("!('GPU-1' == A.uuid)", {"not_uuids": ["GPU-1"]}),
]
WIDE = {"requests": {"gpu.nvidia.com/multiprocessors": 30}}
RTX_PRO = {"models": ["rtx-pro-6000-blackwell-96gb"]}


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        (request("r"), {}),
        (request("r", count=2, allocationMode="ExactCount"), {"gpus": 2}),
        (request("r", tolerations=[{"operator": "Exists"}]), {}),
        (MIG_SMALL, {"profile": "1g.5gb"}),
        (request("r", MIG, SMALL, count=3), {"profile": "1g.5gb", "gpus": 3}),
        (request("r", MIG, "A.profile == '8g.999gb'"), {"profile": "8g.999gb"}),
        (request("r", MIG, "'1g.5gb+me' == A.profile"), {"profile": "1g.5gb+me"}),
        *((request("r", GPU, text), {"only": only}) for text, only in SELECTED),
        (request("r", GPU, capacity={"requests": {"memory": "250Gi"}}), {"only": LARGEST}),
        (request("r", MIG, "A.profile == '1g.24gb'", capacity=WIDE), {"profile": "1g.24gb", "only": RTX_PRO}),
        (request("r", MIG, f"A.parentUUID == 'GPU-1' && {SMALL}"), {"profile": "1g.5gb", "only": {"uuids": ["GPU-1"]}}),
    ],
)
def test_a_selector_becomes_what_the_allocator_understands(asked, fields):
    """Sizes, models and UUIDs of a selector are those of the claim: no more, no less."""
    assert only(claim(asked)) == claim_of(container="r", **fields)


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
    either = prioritized("big", whole=body(), half=body(MIG, "A.profile == '3g.20gb'"))
    found = read_claim(claim(either, request("one", MIG, SMALL)), {}, prefix="p.")
    assert [each.container for each in found.claims] == ["p.big/whole", "p.one"]
    assert [[each.container for each in way] for way in found.alternatives] == [["p.big/half", "p.one"]]
    assert found.requests == {"big/whole": "p.big/whole", "big/half": "p.big/half", "one": "p.one"}


def test_devices_of_one_parent_are_on_one_gpu():
    """`requests: []` means all; a prioritized list brings all of its subrequests. On one device it says nothing."""
    either = prioritized("b", small=body(MIG, SMALL), medium=body(MIG, "A.profile == '2g.10gb'"))
    one_parent = {"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}
    spec = claim(request("a", MIG, SMALL), either, constraints=[one_parent])
    assert read_claim(spec, {}).same_gpu == (("a", "b/small", "b/medium"),)
    alone = claim(MIG_SMALL, constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}])
    assert read_claim(alone, {}).same_gpu == ()


def test_devices_of_one_request_may_be_on_one_numa_node():
    constraint = {"requests": ["r"], "matchAttribute": "resource.kubernetes.io/numaNode"}
    assert only(claim(request("r", count=2), constraints=[constraint])).numa_bind


def test_a_class_of_the_clusters_own_that_selects_nvidias_devices_is_served():
    small = selectors("device.driver == 'gpu.nvidia.com' && A.type == 'mig' && A.profile == '1g.12gb'")
    assert only(claim(request("r", "small")), {"small": small}).profile == "1g.12gb"


def test_a_configuration_of_the_claim_comes_before_that_of_its_class():
    classes = {GPU: {"config": [mps(defaultActiveThreadPercentage=10, defaultPinnedDeviceMemoryLimit="1Gi")]}}
    assert only(claim(request("r")), classes).sm_partition == 10
    assert only(claim(request("r"), config=[mps(defaultActiveThreadPercentage=30)]), classes).sm_partition == 30


CHANNEL = "compute-domain-default-channel.nvidia.com"


@pytest.mark.parametrize(
    ("spec", "classes", "unknown"),
    [
        (claim(request("r", "other.example")), {"other.example": {}}, ()),
        (claim(request("r", "other.example")), {"other.example": selectors("1+")}, ()),
        (claim(request("r", "later.example")), {}, ("later.example",)),
        ({"devices": {"requests": [{"name": "r", "new": {"deviceClassName": "x"}}], "newer": 1}}, {}, ()),
        ({"resourceClassName": "gpu.nvidia.com"}, {}, ()),
        ({}, {}, ()),
        ({"devices": 5}, {}, ()),
        (claim(request("r", CHANNEL)), {CHANNEL: {}}, ()),
    ],
)
def test_a_claim_of_another_driver_is_left_alone(spec, classes, unknown):
    """Whatever it holds: Sluice does not judge what it does not serve."""
    assert read_claim(spec, classes) == NotOurs(unknown)


MPS_2GI = {"modes": ("mps",), "memory_mib": 2048}
HALF = {"modes": ("fractional",), "sm_partition": 50}
HALF_10GI = HALF | {"memory_mib": 10240}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (nvidia({"kind": "GpuConfig"}), {}),
        (nvidia({"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}), {}),
        (mps(), {"modes": ("mps",), "memory_percentage": 100}),
        (mps(defaultPinnedDeviceMemoryLimit="10Gi"), {"modes": ("mps",), "memory_mib": 10240}),
        (mps(defaultPinnedDeviceMemoryLimit="10M"), {"modes": ("mps",), "memory_mib": 9}),
        (mps(defaultActiveThreadPercentage=50), HALF | {"memory_percentage": 100}),
        (mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi", multiUser=False), HALF_10GI),
        (mps(defaultPerDevicePinnedMemoryLimit={"0": "2Gi"}), MPS_2GI),
        (mps(defaultPinnedDeviceMemoryLimit="1Gi", defaultPerDevicePinnedMemoryLimit={"0": "2Gi"}), MPS_2GI),
        (mps("other"), {}),
        (mps("r", defaultPinnedDeviceMemoryLimit="1Gi"), {"modes": ("mps",), "memory_mib": 1024}),
        (mps(kind="MigDeviceConfig"), {}),
        ({"opaque": {"driver": "other.example", "parameters": {"any": 1}}}, {}),
    ],
)
def test_a_configuration_of_nvidia_becomes_a_mode_with_its_limits(config, fields):
    """MPS with limits is a share of ours; in turns, the device is the claim's own."""
    other = request("other") if "other" in config.get("requests", ()) else request("other", MIG, SMALL)
    (found, _), *_ = ways(claim(request("r"), other, config=[config]), uid=7)
    assert found == Claim(container="r", **fields, **({"uid": 7} if fields else {}))


WARNED = """
spec.devices.requests[0].exactly.capacity: turns gets whole GPUs with at least this memory; for a part of one, class
    sluice.dev with mode mps and memory
turns: its containers take turns at the driver's own pace; interval Long is not set
limits: a share with these limits, beside others of the namespace and user; each process has them
mig: its containers take turns on the MIG device, without MPS; for MPS in a MIG instance, class sluice.dev with mode
    mps and memory
"""


def test_what_cannot_be_done_to_the_letter_is_said():
    """A claim is served with a warning rather than silently otherwise."""
    slow = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    limited = mps("limits", defaultPinnedDeviceMemoryLimit="1Gi")
    spec = claim(
        request("turns", capacity={"requests": {"memory": "4Gi"}}),
        request("limits"),
        request("mig", MIG, SMALL),
        config=[nvidia({"kind": "GpuConfig", "sharing": slow}), limited, mps("mig", kind="MigDeviceConfig")],
    )
    assert [(warning,) for warning in read_claim(spec, {}).warnings] == text_rows(WARNED)


ONE = "spec.devices.requests[0].exactly"
CEL = f"{ONE}.selectors[0].cel.expression"
PARAMETERS = "spec.devices.config[0].opaque.parameters"
MPS = f"{PARAMETERS}.sharing.mpsConfig"
CONSTRAINT = "spec.devices.constraints[0]"
EARLY = "Sluice chooses the device before the node is known"
NO_SUCH = "no GPU that Sluice knows has such a device"
KNOWN = (
    "of gpu.nvidia.com: attributes type, uuid, parentUUID, profile, productName, architecture, cudaComputeCapability; "
    "capacities memory, multiprocessors, copyEngines, decoders, encoders, jpegEngines, ofaEngines"
)
AN_EXPRESSION = "an expression over device.driver, device.attributes and device.capacity that is true or false"
IN_DOCS = "a profile or productName of docs/models.md; GPUs that are not in it by class sluice.dev and gpu-model"
OF_THE_NODE = "device.attributes['resource.kubernetes.io']"

SELECTORS_REFUSED = f"""
A.index == 0
  no device has the attribute index: NVIDIA's driver no longer publishes it (allowed: uuid (parentUUID of a MIG
    device), or no such condition)
A.brand == 'Tesla'
  Sluice cannot select by brand: it does not follow from the model (allowed: productName or architecture)
A.driverVersion.major() == 570
  Sluice cannot select by driverVersion: {EARLY} (allowed: a node selector on the pod, by a label such as
    nvidia.com/cuda.driver-version.full)
A.cudaDriverVersion.major() == 12
  Sluice cannot select by cudaDriverVersion: {EARLY} (allowed: a node selector on the pod, by a label such as
    nvidia.com/cuda.runtime-version.full)
A.addressingMode == 'HMM'
  Sluice cannot select by addressingMode: {EARLY} (allowed: a node selector on the pod)
{OF_THE_NODE}.pciBusID == '0000:01:00.0'
  Sluice cannot select by pciBusID: {EARLY} (allowed: uuid (parentUUID of a MIG device))
{OF_THE_NODE}.pcieRoot == 'pci0000:01'
  Sluice cannot select by pcieRoot: {EARLY} (allowed: no such condition)
{OF_THE_NODE}.numaNode == 0
  Sluice cannot select by numaNode: {EARLY} (allowed: a constraint with matchAttribute resource.kubernetes.io/numaNode
    for one request)
A.uuid.startsWith('GPU-1')
  a UUID can only be compared as a whole (allowed: uuid == 'GPU-...', !=, or in ['GPU-...', 'GPU-...']; parentUUID for
    MIG devices)
device.attributes['other.example'].thing == 1
  no device has 'thing' (allowed: {KNOWN})
A.productName == 'H10O'
  {NO_SUCH}; did you mean h100-sxm-80gb? (allowed: {IN_DOCS})
C.memory > 5
  it cannot be evaluated: No matching overloads found : _>_(map, int64) (allowed: {AN_EXPRESSION})
C.memory.isGreaterThan(quantity('much'))
  it cannot be evaluated: 'much' is not a quantity like 40Gi: not a quantity (allowed: {AN_EXPRESSION})
A.productName
  it cannot be evaluated: it is neither true nor false (allowed: {AN_EXPRESSION})
A.productName == 'NVIDIA GB200' && C.memory.isGreaterThan(quantity('186Gi'))
  no list of models is exactly those that match it (allowed: a selector by whole product names, productName == '...')
found(1)
  it cannot be evaluated: undeclared reference to 'found' (allowed: {AN_EXPRESSION})
"""
MIG_SELECTORS_REFUSED = f"""
A.parentUUID == 'GPU-1' ? A.profile == '1g.5gb' : A.parentUUID == 'GPU-2'
  it selects different devices on different GPUs (allowed: one request for each, or firstAvailable)
A.profil == '1g.5gb'
  no device has 'profil'; did you mean profile? (allowed: {KNOWN})
A.profile == '1G.5GB'
  {NO_SUCH}; did you mean 1g.5gb? (allowed: {IN_DOCS})
A.profile == '1c.3g.20gb'
  {NO_SUCH}; did you mean 3g.20gb? (allowed: {IN_DOCS})
"""
CONFIGS_REFUSED = """
{kind: GpuConfig, apiVersion: v1}
  apiVersion: not a version that is read (allowed: resource.nvidia.com/v1beta1)
{kind: GpuConfg}
  kind: there is no such choice; did you mean GpuConfig? (allowed: GpuConfig, MigDeviceConfig)
{kind: VfioDeviceConfig}
  kind: Sluice does not hand GPUs to virtual machines (vfio) (allowed: GpuConfig or MigDeviceConfig)
{kind: ComputeDomainChannelConfig}
  kind: compute domains belong to NVIDIA's own driver (allowed: GpuConfig or MigDeviceConfig)
{kind: GpuConfig, share: {}}
  share: there is no such field; did you mean sharing? (allowed: apiVersion, kind, sharing)
{kind: GpuConfig, sharing: {strategy: Mps}}
  sharing.strategy: there is no such choice (allowed: TimeSlicing, MPS)
{kind: GpuConfig, sharing: {strategy: MPS, timeSlicingConfig: {}}}
  sharing.timeSlicingConfig: contradicts spec.devices.config[0].opaque.parameters.sharing.strategy = 'MPS': it belongs
    to strategy TimeSlicing (allowed: strategy TimeSlicing, or no timeSlicingConfig)
{kind: GpuConfig, sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Longer}}}
  sharing.timeSlicingConfig.interval: there is no such choice; did you mean Long? (allowed: Default, Short, Medium,
    Long)
{kind: MigDeviceConfig, sharing: {strategy: TimeSlicing, timeSlicingConfig: {}}}
  sharing.timeSlicingConfig: there is no such field; did you mean mpsConfig? (allowed: strategy, mpsConfig)
"""
MPS_REFUSED = """
defaultActiveThreadPercentage: 0
  defaultActiveThreadPercentage: out of range (allowed: a whole number from 1 to 100)
defaultPinnedDeviceMemoryLimit: 1k
  defaultPinnedDeviceMemoryLimit: less than one MiB (allowed: at least 1Mi)
defaultPinnedDeviceMemoryLimit: -1Gi
  defaultPinnedDeviceMemoryLimit: less than zero (allowed: a quantity, for instance 10Gi)
multiUser: true
  multiUser: Sluice serves one user with an MPS server (allowed: no multiUser, and the same runAsUser in all
    containers)
multiUser: "yes"
  multiUser: neither true nor false (allowed: true or false)
defaultPerDevicePinnedMemoryLimit: {"1": 1Gi}
  defaultPerDevicePinnedMemoryLimit.1: the request has no such device (allowed: from 0 to 0)
defaultPerDevicePinnedMemoryLimit: {GPU-1: 1Gi}
  defaultPerDevicePinnedMemoryLimit.GPU-1: Sluice chooses the device, so that its UUID is not known (allowed: the
    number of a device, from 0 to 0)
"""
FIELDS_REFUSED = f"""
adminAccess: true
  adminAccess: Sluice gives no access to devices that others use (allowed: no adminAccess, and a device of its own)
allocationMode: Some
  allocationMode: there is no such choice (allowed: ExactCount)
count: 0
  count: out of range (allowed: a whole number from 1 to 32)
count: "2"
  count: not a whole number (allowed: a whole number from 1 to 32)
allocationMode: All
  allocationMode: Sluice gives a number of devices, never all of a node (allowed: ExactCount with a count)
deviceClassName: vfio.gpu.nvidia.com
  deviceClassName: Sluice does not hand GPUs to virtual machines (vfio) (allowed: gpu.nvidia.com, mig.nvidia.com or
    sluice.dev)
counts: 2
  counts: there is no such field; did you mean count? (allowed: deviceClassName, selectors, allocationMode, count,
    adminAccess, tolerations, capacity)
capacity: {{requests: {{memry: 1Gi}}}}
  capacity.requests[memry]: there is no capacity of this name; did you mean memory? (allowed: memory, multiprocessors,
    copyEngines, decoders, encoders, jpegEngines, ofaEngines)
capacity: {{requests: {{memory: lots}}}}
  capacity.requests.memory: not a quantity (allowed: a quantity, for instance 10Gi)
capacity: {{requests: {{memory: 900Gi}}}}
  capacity.requests.memory: {NO_SUCH} (allowed: {IN_DOCS})
"""
R = "{name: r, exactly: {deviceClassName: gpu.nvidia.com}}"
PAIRS_REFUSED = f"""
requests: [{R}, {R}]
  requests: two requests of one name (allowed: another name for each)
requests: [{R}, {R.replace("r,", "s,").replace("gpu.nvidia.com", "other.example")}]
  requests[1].exactly.deviceClassName: the claim also has requests that Sluice serves, and this class is not found
    (allowed: a ResourceClaim of its own for the devices of another driver)
requests: [{R}, {{name: s, exactly: {{}}}}]
  requests[1].exactly.deviceClassName: a request names a class (allowed: sluice.dev, or a DeviceClass of the cluster)
requests: [{R}, {{name: s, firstAvailable: []}}]
  requests[1].firstAvailable: it is empty (allowed: at least one subrequest)
requests: [{R.replace("gpu", "mig")}, {R.replace("gpu", "mig").replace("r,", "s,")}]
  requests: 81 ways to serve this claim: 'r' alone may be 9 kinds of devices (allowed: at most 32: select one profile,
    or list fewer in firstAvailable)
{{requests: [{R}, {R.replace("r,", "s,")}], constraints: [{{matchAttribute: resource.kubernetes.io/numaNode}}]}}
  constraints[0].matchAttribute: Sluice binds the devices of one request to a NUMA node, not those of several
    (allowed: one request with a count)
{{requests: [{R}], config: [{{opaqe: {{}}}}]}}
  config[0].opaqe: there is no such field; did you mean opaque? (allowed: requests, opaque)
"""
ODD_CLAIMS_REFUSED = f"""
{claim(request("r", GPU, *(f"{'true && ' * 1000}{each} == {each}" for each in range(3))))}
  devices.requests[0].exactly.selectors[2].cel.expression: the selectors of this request have 24104 characters, counted
    for each UUID in them (allowed: at most 16384)
{claim(request("r"), config=[mps("x")])}
  devices.config[0].requests[0]: there is no request of this name (allowed: r)
{claim(request("r"), config=[mps("r", kind="MigDeviceConfig")])}
  devices.config[0].opaque.parameters.kind: r is a whole GPU (allowed: GpuConfig)
{claim(MIG_SMALL, config=[mps("r")])}
  devices.config[0].opaque.parameters.kind: r is a MIG device (allowed: MigDeviceConfig)
{claim(MIG_SMALL, config=[mps("r", kind="MigDeviceConfig", defaultActiveThreadPercentage=50)])}
  devices.config[0].opaque.parameters.sharing.mpsConfig.defaultActiveThreadPercentage: a MIG device of a named profile
    has no MPS server: Sluice chooses the instances in which shares live (allowed: class sluice.dev with mode mps and
    memory, or mode fractional with sm-partition; or no limits)
{claim(request("r", count=2), config=[mps(defaultPerDevicePinnedMemoryLimit={"1": "1Gi"})])}
  devices.config[0].opaque.parameters.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: the devices of one request
    have the same limit (allowed: defaultPinnedDeviceMemoryLimit, or one request for each device)
{claim(request("r"), config={"a": 1})}
  devices.config: not a list (allowed: a list)
{claim(request("r"), config=["a"])}
  devices.config[0]: not a mapping (allowed: a mapping)
{{devices: {{requests: [{R}]}}, more: 1}}
  more: there is no such field (allowed: devices)
"""
CONSTRAINTS_REFUSED = """
matchAttribute: gpu.nvidia.com/parentUUID
  matchAttribute: r is no MIG device, and only those have a parent (allowed: the requests of MIG devices alone)
matchAttribute: gpu.nvidia.com/parentUUId
  matchAttribute: Sluice does not match devices by it; did you mean gpu.nvidia.com/parentUUID? (allowed:
    gpu.nvidia.com/parentUUID or resource.kubernetes.io/numaNode)
distinctAttribute: gpu.nvidia.com/parentUUID
  distinctAttribute: Sluice cannot keep devices apart by an attribute (allowed: no distinctAttribute; a GPU policy
    such as spread chooses GPUs (docs/policies.md))
{requests: [x], matchAttribute: gpu.nvidia.com/parentUUID}
  requests[0]: there is no request of this name (allowed: r)
"""


def under(place, refused, made):
    """The rows of a text whose refusals name fields of one place."""
    for written, said in text_rows(refused):
        field, _, refusal = said.partition(": ")
        yield made(safe_load(written)), f"{place}.{field}", refusal


TOO_MANY = "more than one node has (allowed: 1 to 8 over all containers)"


@pytest.mark.parametrize(
    ("spec", "field", "refusal"),
    [
        *((claim(request("r", GPU, text)), CEL, refusal) for text, refusal in text_rows(SELECTORS_REFUSED)),
        *((claim(request("r", MIG, text)), CEL, refusal) for text, refusal in text_rows(MIG_SELECTORS_REFUSED)),
        *under(ONE, FIELDS_REFUSED, lambda fields: claim({"name": "r", "exactly": body() | fields})),
        *under(PARAMETERS, CONFIGS_REFUSED, lambda config: claim(request("r"), config=[nvidia(config)])),
        *under(MPS, MPS_REFUSED, lambda config: claim(request("r"), config=[mps(**config)])),
        *under("spec.devices", PAIRS_REFUSED, lambda devices: {"devices": devices}),
        *under(CONSTRAINT, CONSTRAINTS_REFUSED, lambda one: claim(request("r", count=2), constraints=[one])),
        (claim(request("r", count=9)), "spec.devices.requests", TOO_MANY),
        (claim(request("")), "spec.devices.requests[0].name", "a request has a name (allowed: for instance gpu)"),
        (claim(request("r", GPU, " ")), CEL, "it is empty (allowed: a CEL expression)"),
        *under("spec", ODD_CLAIMS_REFUSED, lambda spec: spec),
    ],
)
def test_a_refusal_names_the_field_and_what_is_right(spec, field, refusal):
    """A person finds the place in the manifest, and what to write instead."""
    found = sentence(spec)
    assert found.startswith(f"{field} = ")
    assert found.endswith(f": {refusal}")


def test_a_refusal_in_a_template_or_class_says_where_it_stands():
    """A template's spec is one level deeper; a class is another object."""
    of_template = sentence(claim(request("r", count=0)), path="spec.spec")
    assert of_template.startswith("spec.spec.devices.requests[0].exactly.count")
    of_class = sentence(claim(request("r")), {GPU: selectors("1 +")})
    assert of_class.startswith("DeviceClass gpu.nvidia.com: spec.selectors[0].cel.expression = '1 +'")


@pytest.mark.parametrize("depth", [2, 40])
def test_an_expression_that_would_grow_without_end_is_refused_at_once(depth):
    """Kubernetes stops it by its cost; here its loops are counted."""
    text = "['aaaaaaaa']" + ".map(x, x + x + x + x + x + x + x + x)" * depth + " == []"
    found = read_claim(claim(request("r", GPU, text)), {})
    assert ("loops 40 times" in found.message) == (depth == 40)


def test_more_devices_than_a_node_may_have_are_refused_by_the_configured_limit():
    assert only(claim(request("r", count=9)), limits=RequestLimits(max_gpus_per_node=16)).gpus == 9
