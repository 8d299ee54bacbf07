"""What people write: manifests, annotations, amounts, and every file that is handed to a program."""

import json
from collections.abc import Callable
from pathlib import Path

import yaml
from factories.scheduling.placement_files import GEOMETRIES, NODES, WHOLE
from fuzz.checking import Target
from fuzz.memory_files import as_text, of_file, of_text

from sluice.contracts.dra.reader import read_claim
from sluice.contracts.fleet_file.fleet_spec import FleetSpecError, parse_fleet
from sluice.contracts.kube.quantities import NotANumber, parse_decimal, parse_memory_mib, parse_quantity, parse_whole
from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.pod_specs import read_containers, read_host_needs
from sluice.contracts.quotas.limits_file import read_limits
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import ContainerRequest, RequestLimits, parse_pod
from sluice.contracts.toml_tables import TableError
from sluice.mig.profile_name import ProfileName, ProfileNameError
from sluice.runtime.settings import CommonSettings, SettingsError, load
from sluice_allocator.hami_files import HamiRules, parse_device_config, parse_node_config
from sluice_allocator.offline.pod_requests import PolicyError, parse_policies
from sluice_allocator.offline.workload import WorkloadError, read_workload
from sluice_allocator.placement_file import PlacementFileError, parse_placement
from sluice_console.core.bench.load import LoadError, replayed
from sluice_console.core.web.request_check import denied, host_name, is_address

_ROOT = Path(__file__).resolve().parents[2]
_EXAMPLES = _ROOT / "examples"
_MANIFESTS = [path.read_bytes() for path in sorted(_EXAMPLES.glob("*.yaml"))]
_CLAIM_MANIFESTS = [path.read_bytes() for path in sorted((_ROOT / "tests" / "data" / "dra").glob("*.yaml"))]
_CLAIMS = tuple(
    yaml.safe_load_all("""
devices:
  requests:
  - name: a
    exactly:
      deviceClassName: mig.nvidia.com
      selectors: &cel [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile in ['1g.5gb', '2g.10gb']"}}]
      count: 2
  - name: b
    firstAvailable:
    - {name: x, deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 1Gi}}}
    - {name: y, deviceClassName: mig.nvidia.com, selectors: *cel, tolerations: []}
  constraints: [{requests: [a], matchAttribute: gpu.nvidia.com/parentUUID}]
  config:
  - requests: [b/x]
    opaque:
      driver: gpu.nvidia.com
      parameters:
        apiVersion: resource.nvidia.com/v1beta1
        kind: GpuConfig
        sharing:
          strategy: MPS
          mpsConfig:
            defaultActiveThreadPercentage: 50
            defaultPinnedDeviceMemoryLimit: 10Gi
            defaultPerDevicePinnedMemoryLimit: {"0": 1Gi}
            multiUser: false
classes: {gpu.nvidia.com: {selectors: [{cel: {expression: "false"}}], config: []}}
---
devices:
  requests: [{name: a, exactly: {deviceClassName: sluice.dev, allocationMode: ExactCount}}]
  config:
  - opaque: &slice
      driver: gpu.sluice.dev
      parameters: {apiVersion: sluice.dev/v1, kind: SliceRequest, memory: 8Gi, mode: mps, priority: 3}
classes: {sluice.dev: {config: [{opaque: *slice}]}}
""")
)
_POD = yaml.safe_load("""
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: research, annotations: {sluice.dev/profile: 1g.5gb}}
spec:
  containers:
  - name: main
    securityContext: {runAsUser: 1000}
    resources: {limits: {nvidia.com/gpu: "1", cpu: 500m, memory: 1Gi, example.com/nic: 1}}
  initContainers: [{name: first, restartPolicy: Always, resources: {requests: {cpu: 1}}}]
  overhead: {cpu: 1m}
  nodeSelector: {zone: a}
  tolerations: [{key: k, operator: Exists, effect: NoSchedule, tolerationSeconds: 3}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: zone, operator: In, values: [a, b]}]
        - matchFields: [{key: metadata.name, operator: In, values: [gpu-1]}]
""")
_ASKS = [
    {"sluice.dev/profile": "3g.20gb", "sluice.dev/gpus": "2", "sluice.dev/priority": "-5"},
    {"sluice.dev/mode": "mps,exclusive", "sluice.dev/memory": "8Gi", "main.sluice.dev/gpu-model": "A100,A30"},
    {"sluice.dev/sm-partition": "20", "sluice.dev/quota-request": "0.3", "sluice.dev/quota-limit": "0.8"},
    {"sluice.dev/shares": "1.5", "sluice.dev/group": "g", "sluice.dev/group-size": "3"},
    {"sluice.dev/preemptible": "true", "sluice.dev/movable": "true", "sluice.dev/substitute": "+1"},
    {"hami.io/gpu-scheduler-policy": "spread", "nvidia.com/use-gputype": "A100", "nvidia.com/vgpu-mode": "mig"},
    {"fastgshare/sm_partition": "12", "fastgshare/quota_limit": "0.8", "fastgshare/gpu_mem": "2000"},
]
_RESOURCES = {
    "main": {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 8000, "nvidia.com/gpucores": 30, "nvidia.com/mig-1g.5gb": 1}
}
_LIMITS = RequestLimits()
_VALUE_MAX = 400
"""Characters of a value that is quoted."""


def _manifest(text: str, **how: bool) -> str:
    found = read_manifests("f.yaml", text, limits=ManifestLimits(), asks=_LIMITS, **how)
    refusals = [found] if isinstance(found, Refusal) else [each.refusal for each in found if each.refusal is not None]
    return max((_said(each) for each in refusals), key=len, default="")


def _claim(data: bytes) -> str:
    document = _json(data)
    if not isinstance(document, dict):
        return ""
    classes = document.pop("classes", {})
    specs = (
        {name: each for name, each in classes.items() if isinstance(each, dict)} if isinstance(classes, dict) else {}
    )
    found = read_claim(document, specs)
    return _said(found) if isinstance(found, Refusal) else ""


def _said(refusal: Refusal) -> str:
    assert len(refusal.value) <= _VALUE_MAX, f"a value of {len(refusal.value)} characters goes on the bus"
    return refusal.sentence()


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _ask(data: bytes) -> str:
    document = _json(data)
    if not isinstance(document, dict):
        return ""
    resources = document.pop("resources", {})
    amounts = resources.get("main", {}) if isinstance(resources, dict) else {}
    containers = (ContainerRequest("main", amounts if isinstance(amounts, dict) else {}), ContainerRequest("side"))
    found = parse_pod(document, containers, limits=_LIMITS)
    return _said(found) if isinstance(found, Refusal) else ""


def _spec(data: bytes) -> str:
    document = _json(data)
    found = [read_containers(document), read_host_needs(document)]
    return max((_said(each) for each in found if isinstance(each, Refusal)), key=len, default="")


def _amount(data: bytes) -> str:
    text = as_text(data)
    found = [parse_whole(text), parse_decimal(text, 2), parse_quantity(text), parse_memory_mib(text)]
    return max((each.why for each in found if isinstance(each, NotANumber)), key=len, default="")


def _profile(data: bytes) -> None:
    found = ProfileName.parse(as_text(data))
    assert ProfileName.parse(str(found)) == found, f"its own name, {found}, is another profile's"


def _hami(text: str, parse: Callable[..., HamiRules]) -> str:
    return max(parse(text, origin="hami.yaml").warnings, key=len, default="")


def _settings_file(path: Path) -> None:
    load(CommonSettings, service="allocator", environ={"SLUICE_CONFIG": str(path)})


def _environment(data: bytes) -> None:
    pairs = (line.partition("=") for line in as_text(data).split("\n"))
    load(CommonSettings, service="allocator", environ={name: value for name, _, value in pairs})


def _workload(data: bytes) -> None:
    for _ in read_workload(data.splitlines(keepends=True), origin="workload.jsonl"):
        pass


def _benchmark(data: bytes) -> None:
    replayed("run", as_text(data).splitlines(), speed=1.0, requests=1_000)


_FILES = [(_EXAMPLES / name).read_bytes() for name in ("fleet.toml", "limits.toml")]
_FLEET = b"""
[[node]]
name = "gpu-1"
count = 4
pool = "training"
cpu_cores = 64.5
memory_mib = 524288
pods = 110
labels = { zone = "a" }
taints = ["dedicated=training:NoSchedule"]
resources = { "example.com/nic" = 4 }
modes = ["exclusive", "mps"]
timing = { create_ms = 150, destroy_ms = 100 }
faults = { slow = 2.0 }
gpus = [
  { model = "a100-40gb", count = 4, mig = true, numa = [0, 0, 1, 1], nvlink = [[0, 1]], layout = ["3g.20gb:4"] },
  { model = "T4", mig = false, memory_mib = 15360, multiprocessors = 40 },
]
"""
_LIMITS_FILE = b"""
[namespaces.default]
gpus = 4
memory = "120Gi"
pod-gpus = 2
guaranteed-compute-slices = 7
[nodes.gpu-2]
cordon = true
drain = true
why = "its fan is changed"
gpus = ["GPU-1"]
"""
_SETTINGS = b"""
nats_url = "nats://127.0.0.1:4222"
log_level = "info"
grpc_plain_text = false
[allocator]
grpc_ca_file = "/x"
[node-agent]
nodes = ["gpu-1"]
"""


def _question_to_the_page(data: bytes) -> str:
    """A request line and a Host, as a server hands them on; what is answered is for a name of ours or an address."""
    method, path, host = ([*data.decode("latin-1").split(" "), "", "", ""])[:3]
    why = denied(method=method, path=path, headers={"host": host}, hosts=("gpus.example",), is_data=True)
    if why is None:
        assert host_name(host) in {"localhost", "gpus.example"} or is_address(host_name(host)), host
    return why.why if why is not None else ""


TARGETS: tuple[Target, ...] = (
    Target("manifest", of_text(_manifest), [*_MANIFESTS, json.dumps(_POD).encode()]),
    Target("manifest of claims", of_text(_manifest, by_claims=True), _CLAIM_MANIFESTS, weight=0.2),
    Target("claim", _claim, [json.dumps(each).encode() for each in _CLAIMS], weight=0.5),
    Target("annotations", _ask, [json.dumps(each).encode() for each in (*_ASKS, {"resources": _RESOURCES})]),
    Target("pod's spec", _spec, [json.dumps(_POD["spec"]).encode()]),
    Target("amount", _amount, [b"8Gi", b"1500m", b"-3", b"0.25", b"1e3", b"8000", b"1.5Ti"]),
    Target("profile's name", _profile, [b"1g.5gb", b"3g.20gb", b"1g.5gb+me", b"1c.3g.20gb"], (ProfileNameError,)),
    Target("fleet file", of_text(parse_fleet, origin="fleet.toml"), [_FILES[0], _FLEET], (FleetSpecError,)),
    Target("limits file", of_text(read_limits, origin="l.toml", source="f"), [_FILES[1], _LIMITS_FILE], (TableError,)),
    Target("placement file", of_text(parse_placement, origin="places.toml"), [WHOLE.encode()], (PlacementFileError,)),
    Target(
        "HAMi's devices",
        of_text(_hami, parse=parse_device_config),
        [GEOMETRIES.encode()],
        (PlacementFileError,),
        weight=0.2,
    ),
    Target("HAMi's nodes", of_text(_hami, parse=parse_node_config), [NODES.encode()], (PlacementFileError,)),
    Target("settings file", of_file(_settings_file), [_SETTINGS], (SettingsError,)),
    Target(
        "environment",
        _environment,
        [b"SLUICE_NATS_URL=nats://a:1\nSLUICE_ALLOCATOR_LOG_LEVEL=debug\nSLUICE_GRPC_PLAIN_TEXT=true"],
        (SettingsError,),
    ),
    Target("workload", _workload, [(_EXAMPLES / "workload.jsonl").read_bytes()], (WorkloadError,)),
    Target("workload of a benchmark", _benchmark, [(_EXAMPLES / "workload.jsonl").read_bytes()], (LoadError,)),
    Target(
        "question to the page",
        _question_to_the_page,
        [b"GET /api/map localhost:8617", b"GET / [::1]:8617", b"HEAD /healthz gpus.example", b"POST / 127.0.0.1"],
    ),
    Target("policies", of_text(parse_policies), [b"binpack", b"node=spread,gpu=numa,binpack"], (PolicyError,)),
)
