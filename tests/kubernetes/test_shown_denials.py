"""What a person sees when admission does not take a pod, or takes it with a warning: the lines of `kubectl apply`."""

import ast
import asyncio
import inspect
import json
import sys
from typing import Any, NamedTuple

import pytest
from factories.cluster.admission import answer, container, gpu, pod, taken
from factories.cluster.described_pods import kubectl, kubectl_is_there
from factories.cluster.kubernetes import Json, deployment
from factories.cluster.webhook_cluster import webhook_cluster
from factories.text_rows import alike, text_rows

from sluice.contracts.admission import environment, reserved_fields, validation, volumes

DENIED = 'admission webhook "pods.sluice.dev" denied the request: '
GPU = gpu(gpu="1")
MODULES = (validation, reserved_fields, environment, volumes)


class Denial(NamedTuple):
    """A pod as a person writes it, and the sentence that they read; a `*` stands for anything."""

    code: int
    body: Json
    sentence: str


def with_volume(**volume: Any) -> Json:
    return pod(container(resources=GPU), volumes=[volume])


def with_mount(name: str, path: str) -> Json:
    made = pod(container(resources=GPU), volumes=[{"name": name, "emptyDir": {}}] if name != "sluice-slice" else [])
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": path}]
    return made


def with_env(name: str, value: str, **annotations: Json) -> Json:
    return pod(container(resources=GPU, env=[{"name": name, "value": value}]), **annotations)


LEAVE_OUT = "(allowed: leave it out)"
NOT_PRIVILEGED = "(allowed: false, or a cluster that allows privileged GPU pods)"
REQUEST = "spec.containers[main].resources.requests[nvidia.com/gpu] = '1': "
FRACTIONAL = {"sluice.dev/sm-partition": "50", "sluice.dev/memory": "4Gi"}
OF_A_CLASS = "deviceclass.resource.kubernetes.io/sluice.dev"
ALONE = {"requests": {"nvidia.com/gpu": "1"}}
BODIES = {
    "a list of devices": (403, with_env("NVIDIA_VISIBLE_DEVICES", "0,1")),
    "capabilities twice": (
        422,
        with_env("NVIDIA_DRIVER_CAPABILITIES", "video", annotations={"main.sluice.dev/driver-capabilities": "compute"}),
    ),
    "a slip in the capabilities": (422, with_env("NVIDIA_DRIVER_CAPABILITIES", "compute,vidoe")),
    "a gpu and none": (422, with_env("NVIDIA_VISIBLE_DEVICES", "void")),
    "a second preload": (403, pod(container(env=[{"name": "LD_PRELOAD", "value": "/a.so"}]), annotations=FRACTIONAL)),
    "a path of the host": (403, with_volume(name="h", hostPath={"path": "/run/sluice"})),
    "our driver": (403, with_volume(name="mine", csi={"driver": "slice.sluice.dev"})),
    "our volume": (403, with_volume(name="sluice-slice", emptyDir={})),
    "our mount": (403, with_mount("sluice-slice", "/all")),
    "the place of our mount": (403, with_mount("data", "/run/sluice/slice")),
    "a mount of a list of devices": (403, with_mount("data", "/var/run/nvidia-container-devices/all")),
    "our annotation": (403, pod(annotations={"sluice.dev/request": "{}"})),
    "our label": (403, pod(labels={"sluice.dev/managed": "true"})),
    "our gate": (403, pod(schedulingGates=[{"name": "sluice.dev/slice"}])),
    "a grant": (403, pod(annotations={"main.granted.sluice.dev/visible-devices": "all"})),
    "a node": (403, pod(container(resources=GPU), nodeName="gpu-1")),
    "the host's processes": (403, pod(container(resources=GPU), hostPID=True)),
    "the host's memory": (403, pod(annotations={"sluice.dev/memory": "4Gi", "sluice.dev/mode": "mps"}, hostIPC=True)),
    "privileges": (403, pod(container(resources=GPU, securityContext={"privileged": True}))),
    "the resource of a class": (403, pod(container(resources={"limits": {OF_A_CLASS: "1"}}))),
    "a request alone": (422, pod(container(resources=ALONE))),
    "a request beside another limit": (422, pod(container(resources={**ALONE, "limits": {"nvidia.com/gpu": "2"}}))),
    "InvalidValue": (422, pod(container(resources=gpu(gpu="500m")))),
    "OutOfRange": (422, pod(annotations={"sluice.dev/sm-percentage": "140"})),
    "Contradiction": (422, pod(container(resources=GPU), annotations={"sluice.dev/memory": "4Gi"})),
    "UnknownKey": (422, pod(annotations={"sluice.dev/profil": "1g.5gb"})),
    "UnsupportedKey": (
        422,
        pod(container(resources=gpu(gpu="1", gpumem="8000")), init=[container("prep", resources=GPU)]),
    ),
    "UnknownContainer": (422, pod(annotations={"maim.sluice.dev/profile": "1g.5gb"})),
    "UnknownProfile": (422, pod(annotations={"sluice.dev/profile": "big"})),
    "TooLarge": (422, pod(container(resources=gpu(gpu="5")), container("second", resources=gpu(gpu="5")))),
    "two at once": (403, pod(container(resources=GPU), hostPID=True, nodeName="gpu-1")),
}
SENTENCES = f"""
a list of devices
  spec.containers[main].env[NVIDIA_VISIBLE_DEVICES] = '0,1': Sluice sets this from what the pod is granted (allowed:
    leave it out, or 'all', for all devices of the container)
capabilities twice
  spec.containers[main].env[NVIDIA_DRIVER_CAPABILITIES] = 'video': the pod's annotations set 'compute' for this
    container (allowed: only one of them, or the same in both)
a slip in the capabilities
  spec.containers[main].env[NVIDIA_DRIVER_CAPABILITIES] = 'compute,vidoe': 'vidoe' is not a driver capability; did
    you mean video? (allowed: compute, compat32, display, graphics, ngx, utility, video, or all)
a gpu and none
  spec.containers[main].env[NVIDIA_VISIBLE_DEVICES] = 'void': the container requests a GPU, and this hides all GPUs
    (allowed: one of the two)
a second preload
  spec.containers[main].env[LD_PRELOAD] = '/a.so': a fractional share preloads the library of its time quota here,
    and a second entry would replace it (allowed: preload yours in the image (/etc/ld.so.preload), or use a mode
    without a time quota)
a path of the host
  spec.volumes[h].hostPath.path = '/run/sluice': leads to /run/sluice of the node, which gives access to the slices
    of other pods (allowed: other directories of the host)
our driver
  spec.volumes[mine].csi.driver = 'slice.sluice.dev': Sluice adds its volume itself (allowed: leave the volume out)
our volume
  spec.volumes = 'sluice-slice': this name belongs to the volume that Sluice adds (allowed: another name)
our mount
  spec.containers[main].volumeMounts = 'sluice-slice at /all': Sluice mounts its volume itself, each container its
    own part of it (allowed: leave the mount out)
the place of our mount
  spec.containers[main].volumeMounts = 'data at /run/sluice/slice': Sluice mounts the container's ticket at
    /run/sluice/slice (allowed: another mountPath)
a mount of a list of devices
  spec.containers[main].volumeMounts = 'data at /var/run/nvidia-container-devices/all': NVIDIA's runtime reads
    devices from mounts there, and Sluice sets them from what the pod is granted (allowed: leave the mount out)
our annotation
  metadata.annotations[sluice.dev/request] = '{{}}': Sluice writes this when the pod is created {LEAVE_OUT}
our label
  metadata.labels[sluice.dev/managed] = 'true': Sluice sets this label on its pods {LEAVE_OUT}
our gate
  spec.schedulingGates = 'sluice.dev/slice': Sluice sets its gate itself; one set by hand may never be opened
    {LEAVE_OUT}
a grant
  metadata.annotations[main.granted.sluice.dev/visible-devices] = 'all': Sluice writes this with a grant {LEAVE_OUT}
a node
  spec.nodeName = 'gpu-1': a pod that is already on a node cannot wait for a slice (allowed: nodeSelector or node
    affinity)
the host's processes
  spec.hostPID = 'true': a GPU pod that sees the processes of its node can reach the slices of others through them
    {NOT_PRIVILEGED}
the host's memory
  spec.hostIPC = 'true': a pod on a shared GPU could write into the shared memory of its neighbours (allowed: false,
    or an emptyDir with medium Memory at /dev/shm)
privileges
  spec.containers[main].securityContext.privileged = 'true': a privileged container of a GPU pod sees every GPU of
    its node {NOT_PRIVILEGED}
the resource of a class
  spec.containers[main].resources.limits[deviceclass.resource.kubernetes.io/sluice.dev] = '1': the scheduler itself
    would allocate sluice.dev for it, past Sluice (allowed: a ResourceClaimTemplate of class sluice.dev, or
    nvidia.com/gpu)*
a request alone
  {REQUEST}a GPU resource needs a limit, and has only a request (allowed: the same under limits)
a request beside another limit
  {REQUEST}differs from its limit '2' (allowed: equal request and limit, or the limit alone)
InvalidValue
  nvidia.com/gpu = '500m': not a whole number (allowed: a whole number from 0 to 8)
OutOfRange
  sluice.dev/sm-percentage = '140': out of range (allowed: a whole number from 1 to 100)
Contradiction
  nvidia.com/gpu = '1': contradicts sluice.dev/memory = '4Gi': these are two vocabularies for one container (allowed:
    one of them)
UnknownKey
  sluice.dev/profil = '1g.5gb': there is no such key; did you mean sluice.dev/profile? (allowed: *)
UnsupportedKey
  nvidia.com/gpu = '1 x a whole GPU, exclusive': the init container 'prep' uses the devices of a container with the
    same request, and there is none (allowed: the same request and runAsUser as another container of the pod, or none)
UnknownContainer
  maim.sluice.dev/profile = '1g.5gb': the pod has no container 'maim'; did you mean main? (allowed: main)
UnknownProfile
  sluice.dev/profile = 'big': not the name of a MIG profile (allowed: *)
TooLarge
  nvidia.com/gpu = '*(allowed: 1 to 8 over all containers)
two at once
  spec.nodeName = 'gpu-1': a pod that is already on a node cannot wait for a slice (allowed: nodeSelector or node
    affinity); spec.hostPID = 'true': a GPU pod that sees the processes of its node can reach the slices of others
    through them {NOT_PRIVILEGED}
"""
SENTENCE_OF = dict(text_rows(SENTENCES))
assert SENTENCE_OF.keys() == BODIES.keys()
DENIALS = {title: Denial(*body, SENTENCE_OF[title]) for title, body in BODIES.items()}
WARNINGS = {
    "priority": (
        pod(container(resources=gpu(gpu="1", priority="1"))),
        "Sluice does not use nvidia.com/priority: the annotation sluice.dev/priority orders waiting pods",
    ),
    "scheduler": (
        pod(container(resources=GPU), schedulerName="hami-scheduler"),
        "spec.schedulerName = 'hami-scheduler': that scheduler starts the pod, so it must be running",
    ),
    "fastpod": (
        pod(annotations={"sluice.dev/mode": "fastpod", "sluice.dev/sm-partition": "20"}),
        "sluice.dev/mode = 'fastpod': fastpod is now called fractional; use that name",
    ),
}


def named(body: Json, name: str) -> Json:
    metadata = {key: value for key, value in body["metadata"].items() if key not in {"generateName", "namespace"}}
    return {**body, "metadata": {**metadata, "name": name}}


def documents(bodies: dict[str, Json]) -> str:
    """A file for `kubectl apply`."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [named(b, n) for n, b in bodies.items()]})


NUMBERED = {f"pod-{number}": denial for number, denial in enumerate(DENIALS.values())}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What the API server answers to each pod; where there is kubectl, checked to be what it prints."""
    folder = tmp_path_factory.mktemp("denied")

    async def apply() -> dict[str, tuple[int, str]]:
        async with webhook_cluster(folder / "config") as cluster:
            path = f"/api/v1/namespaces/{await cluster.namespace()}/pods"
            replies = {name: await cluster.post(path, named(each.body, name)) for name, each in NUMBERED.items()}
            if kubectl_is_there():
                (folder / "pods.json").write_text(documents({name: each.body for name, each in NUMBERED.items()}))
                words = ("apply", "--validate=false", "-f", str(folder / "pods.json"))
                lines = (await kubectl(cluster.kubeconfig, folder, *words, fails=True)).splitlines()
                for name, reply in replies.items():
                    assert any(reply.message in line for line in lines), (name, lines)
            assert (await cluster.get(path)).items == []
            return {name: (reply.code, reply.message) for name, reply in replies.items()}

    return asyncio.run(apply())


@pytest.mark.parametrize("title", list(DENIALS))
def test_a_person_reads_why_a_pod_is_not_taken(printed, title):
    """They would try one line after the other."""
    wanted = DENIALS[title]
    code, message = printed[f"pod-{list(DENIALS).index(title)}"]
    assert code == wanted.code
    assert message.startswith(DENIED)
    assert alike(message.removeprefix(DENIED), wanted.sentence), message


def test_every_denial_that_admission_has_is_among_them(monkeypatch):
    """A new denial must get a test of what a person reads."""
    said = set()
    for module in MODULES:
        for name in ("forbidden", "invalid"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, recorded(getattr(module, name), said))
    for denial in DENIALS.values():
        answer(denial.body)
    written = set()
    for module in MODULES:
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in {"forbidden", "invalid"}:
                written.add((module.__name__, call.lineno))
    assert len(written) > 15
    assert said == written


def recorded(deny, said):
    """The same, which also notes the line that it was called in."""

    def noted(*arguments):
        frame = sys._getframe(1)  # who called
        said.add((frame.f_globals["__name__"], frame.f_lineno))
        return deny(*arguments)

    return noted


async def test_a_deployments_owner_reads_it_in_the_event_of_its_replica_set(tmp_path):
    """A Deployment is taken whatever its pods are; its owner would see 0 of 2 pods and nothing else."""
    denial = DENIALS["privileges"]
    async with webhook_cluster(tmp_path / "config") as cluster:
        namespace = await cluster.namespace()
        body = deployment("train", 2, denial.body["spec"])
        await cluster.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
        path = f"/api/v1/namespaces/{namespace}/events"
        found = await cluster.until(path, lambda reply: bool(reply.items))
        (event,) = found.items
        assert (event["reason"], event["involvedObject"]["kind"]) == ("FailedCreate", "ReplicaSet")
        assert event["message"] == f"Error creating: {DENIED}{denial.sentence}"
        assert len(event["message"]) < 1024
        told = await cluster.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/train")
        (condition,) = told.body["status"]["conditions"]
        assert (condition["reason"], condition["message"]) == ("FailedCreate", f"{DENIED}{denial.sentence}")


async def test_a_person_reads_what_a_pod_that_is_taken_does_not_do(tmp_path):
    """A key that says nothing here would be believed to count."""
    async with webhook_cluster(tmp_path / "config") as cluster:
        plain, mps = await cluster.namespace(), await cluster.namespace(**{"sluice.dev/default-mode": "mps"})
        bodies = {title: named(body, title) for title, (body, _) in WARNINGS.items()}
        for title, (_, warning) in WARNINGS.items():
            reply = await cluster.post(f"/api/v1/namespaces/{plain}/pods", bodies[title], dryRun="All")
            assert (reply.code, reply.warnings) == (201, [warning])
        asks = pod(annotations={"sluice.dev/memory": "4Gi"})
        reply = await cluster.post(f"/api/v1/namespaces/{mps}/pods", named(asks, "p"))
        default = "main.sluice.dev/mode = 'mps': the default of this namespace, because the pod names no mode"
        assert (reply.code, reply.warnings) == (201, [default])
        if kubectl_is_there():
            (tmp_path / "pods.json").write_text(documents(bodies))
            words = ("-n", plain, "apply", "--validate=false", "-f", str(tmp_path / "pods.json"))
            printed = await kubectl(cluster.kubeconfig, tmp_path, *words, errors=True)
            for _, warning in WARNINGS.values():
                assert f"Warning: {warning}" in printed.splitlines()


async def test_a_person_reads_why_a_debug_container_is_not_taken(tmp_path):
    """`kubectl debug` is how people look into a pod that misbehaves."""
    async with webhook_cluster(tmp_path / "config") as cluster:
        path = f"/api/v1/namespaces/{await cluster.namespace()}/pods"
        await cluster.create(path, named(pod(container(resources=GPU)), "p"))
        debugger = {"name": "debugger", "image": "busybox:1.36", "securityContext": {"privileged": True}}
        body = {"spec": {"ephemeralContainers": [debugger]}}
        reply = await cluster.patch(f"{path}/p/ephemeralcontainers", body)
        why = (
            f"{DENIED}spec.ephemeralContainers[debugger].securityContext.privileged = 'true': "
            f"a privileged container of a GPU pod sees every GPU of its node {NOT_PRIVILEGED}"
        )
        assert (reply.code, reply.message) == (403, why)
        assert taken(pod(container(resources=GPU)))["spec"]["schedulingGates"]
