"""Manifests with the shapes of NVIDIA's demos (kubernetes-sigs/dra-driver-nvidia-gpu, demo/specs/quickstart)."""

from pathlib import Path

import pytest

from sluice.contracts.manifests import ManifestLimits, PodManifest, read_manifests
from sluice.contracts.messages import Claim
from sluice.contracts.request_syntax import RequestLimits, parse_pod

FOLDER = Path(__file__).parents[4] / "data" / "dra"


def read(text: str, file: str = "pods.yaml") -> list[PodManifest]:
    found = read_manifests(file, text, limits=ManifestLimits(), asks=RequestLimits(), by_claims=True)
    assert isinstance(found, tuple), found
    return [pod for pod in found if not pod.skipped]


def pods_of(name: str) -> list[PodManifest]:
    return read((FOLDER / f"{name}.yaml").read_text(), name)


NO_INDEX = "no device has the attribute index: NVIDIA's driver no longer publishes it"


@pytest.mark.parametrize(
    ("name", "field", "why"),
    [
        ("gpu-test6", "selectors[0].cel.expression", NO_INDEX),
        ("vfio", "deviceClassName", "Sluice does not hand GPUs to virtual machines (vfio)"),
    ],
)
def test_a_demo_that_cannot_run_says_why(name, field, why):
    for pod in pods_of(name):
        assert pod.refusal.field.startswith("ResourceClaimTemplate ")
        assert pod.refusal.field.endswith(f": spec.spec.devices.requests[0].exactly.{field}")
        assert pod.refusal.message == why


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_a_demo_can_be_asked_in_annotations(name):
    """The allocator predicts what a manifest gets by the parser of annotations."""
    for pod in pods_of(name):
        if pod.ask is not None:
            found = parse_pod(pod.annotations, pod.containers)
            assert [each.container for each in found.claims] == [each.container for each in pod.ask.claims]


TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
"""
CLAIM = TEMPLATE.replace("Template", "").replace("spec: {spec: {devices", "spec: {devices").replace("}]}}}", "}]}}")


def pod(claims: str, *, metadata: str = "name: p", main: str = "name: main", more: str = "") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{{metadata}}}
spec: {{containers: [{{{main}}}], resourceClaims: [{claims}]{more}}}
"""


OTHER_CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: other.example}
spec: {}
"""
BY_TEMPLATE = "{name: g, resourceClaimTemplateName: one}"
BY_NAME = "{name: g, resourceClaimName: one}"


def test_the_users_of_a_claim_are_those_of_its_containers():
    """A share's trust domain is the container's user, else the pod's."""
    parameters = "{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS}}"
    config = f"config: [{{opaque: {{driver: gpu.nvidia.com, parameters: {parameters}}}}}]"
    shared = TEMPLATE.replace("}}]}}}", f"}}}}], {config}}}}}}}")
    main = "name: main, resources: {claims: [{name: g}]}, securityContext: {runAsUser: 7}"
    (of_container,) = read(f"{shared}---{pod(BY_TEMPLATE, main=main)}")
    (of_pod,) = read(f"{shared}---{pod(BY_TEMPLATE, more=', securityContext: {runAsUser: 8}')}")
    assert (of_container.ask.claims[0].uid, of_pod.ask.claims[0].uid) == (7, 8)


def test_options_of_a_claim_are_those_of_its_pod():
    ours = TEMPLATE.replace("gpu.nvidia.com", "sluice.dev").replace(
        "}}]}}}",
        "}}], config: [{opaque: {driver: gpu.sluice.dev, parameters: {apiVersion: sluice.dev/v1, kind: SliceRequest, "
        "priority: 7, gpu-policy: binpack, substitute: true, profile: 1g.5gb}}}]}}}",
    )
    (found,) = read(f"{ours}---{pod(BY_TEMPLATE)}")
    assert (found.urgency.value, found.ask.gpu_policy) == (7, "binpack")
    assert found.annotations["sluice.dev/gpu-policy"] == "binpack"
    assert found.annotations["sluice.dev/substitute"] == "true"


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec: {replicas: 3, template: {spec: {containers: [{name: main}], resourceClaims: [{name: g, resourceClaimName: one}]}}}
"""


def test_a_claim_of_a_deployment_is_asked_for_once():
    first, *others = read(f"{CLAIM}---{DEPLOYMENT}")
    assert (first.name, first.ask.claims) == ("d-0", (Claim(container="gpu"),))
    assert [(each.name, each.ask) for each in others] == [("d-1", None), ("d-2", None)]
    assert "pod d-0 has it" in others[0].warnings[0]


OF_ANOTHER = f"{TEMPLATE.replace('gpu.nvidia.com', 'other.example')}---{pod(BY_TEMPLATE)}"
BY_ONES = pod("{name: g, resourceClaimTemplateName: ones}")
NO_ONES = "this file has no ResourceClaimTemplate 'ones' in namespace default, so it is not read; did you mean one?"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (f"{TEMPLATE}---{BY_ONES}", NO_ONES),
        (pod(BY_NAME), "this file has no ResourceClaim 'one' in namespace default, so it is not read"),
        (OF_ANOTHER, "its devices are another driver's; this file has no DeviceClass other.example"),
        (f"{OF_ANOTHER}---{OTHER_CLASS}", "its devices are another driver's"),
    ],
)
def test_a_claim_that_is_not_read_is_said(text, warning):
    """A pod that asks for nothing here may still ask for something in its cluster."""
    (found,) = read(text)
    assert (found.ask, found.refusal, found.warnings) == (None, None, (f"spec.resourceClaims[0]: {warning}",))


TWO = f"{BY_TEMPLATE}, {BY_TEMPLATE.replace('g,', 'h,')}"
ANNOTATED = "name: p, annotations: {sluice.dev/gpus: '1'}"
MISNAMED = "name: main, resources: {claims: [{name: g, request: gpus}]}"
IN_CONTAINER = "spec.containers[main].resources.claims[0]"
IN_TEMPLATE = "ResourceClaimTemplate one: spec.spec.devices.requests[0].exactly"
IN_CLAIM = "ResourceClaim one: spec.devices.requests[0].exactly"
NO_REQUEST = "no request of this name; did you mean gpu?"


def many_of(template: str, more: str) -> str:
    return template.replace("gpu.nvidia.com", f"gpu.nvidia.com, {more}")


@pytest.mark.parametrize(
    ("text", "field", "why"),
    [
        (TEMPLATE + "---" + pod(BY_TEMPLATE, metadata=ANNOTATED), "spec.resourceClaims", "also asks by annotations"),
        (TEMPLATE + "---" + pod(BY_TEMPLATE, main=MISNAMED), f"{IN_CONTAINER}.request", NO_REQUEST),
        (pod("{name: g}"), "spec.resourceClaims[0]", "it names one of two"),
        (pod("{resourceClaimName: x}"), "spec.resourceClaims[0].name", "a claim has a name in its pod"),
        (pod("{name: g, claim: x}"), "spec.resourceClaims[0].claim", "there is no such field"),
        (many_of(TEMPLATE, "x: 1") + "---" + pod(BY_TEMPLATE), f"{IN_TEMPLATE}.x", "there is no such field"),
        (many_of(CLAIM, "count: 0") + "---" + pod(BY_NAME), f"{IN_CLAIM}.count", "out of range"),
        (many_of(TEMPLATE, "count: 5") + "---" + pod(TWO), "spec.resourceClaims", "10 devices on one node"),
        (TEMPLATE + "---" + pod(BY_TEMPLATE, metadata="name: P_"), "metadata.name", "not a valid pod name"),
    ],
)
def test_a_pod_with_a_wrong_claim_is_refused(text, field, why):
    (found,) = read(text)
    assert found.refusal.field == field
    assert why in found.refusal.message
