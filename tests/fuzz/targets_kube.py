"""What a cluster says: reviews, stored asks, objects and events of its API server, kubectl's answers, kubeconfigs."""

import asyncio
import base64
import json
from contextlib import suppress
from pathlib import Path

import msgspec
from factories.cluster.admission import container, gpu, pod, review_of
from fuzz.checking import Target
from fuzz.memory_files import as_text, of_file, of_text

from sluice.contracts.admission.stored_request import decode_stored
from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.bus.events import Ticked
from sluice.contracts.ids import RunId
from sluice.contracts.reasons import Refusal
from sluice.runtime.errors import ServiceError
from sluice_pod_watcher.admission import AdmissionConfig, MalformedReview
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.events import ListingEnded, ListingStarted, Seen
from sluice_pod_watcher.core.cluster.watcher import ClusterWatcher
from sluice_pod_watcher.shell.folder.identity_file import IdentityFile
from sluice_pod_watcher.shell.kube import client as kube_client
from sluice_pod_watcher.shell.kube import credentials, reflector
from sluice_pod_watcher.shell.kube.client import KubeError
from sluice_pod_watcher.shell.kube.informers import node_capacity_only, pod_usage_only
from sluice_pod_watcher.shell.webhook import cert_sources
from sluice_pod_watcher.shell.webhook.handlers import answer_to

_RULES = AdmissionConfig()
_STORED = (
    b'{"version":1,"first":"main","annotations":{"sluice.dev/profile":"1g.5gb"},'
    b'"resources":{"main":{"nvidia.com/gpu":"1"}}}'
)


def _review(data: bytes) -> str:
    found = answer_to(data, _RULES)
    if isinstance(found, MalformedReview):
        return found.why
    sent = json.loads(msgspec.json.encode(found.as_review()))["response"]
    if "patch" in sent:
        assert isinstance(json.loads(base64.b64decode(sent["patch"])), list), "a patch that is no list"
    return found.message


def _stored(data: bytes) -> str:
    found = decode_stored(as_text(data))
    if isinstance(found, Refusal):
        assert len(found.value) <= 400, f"a value of {len(found.value)} characters goes on the bus"
        return found.sentence()
    assert decode_stored(found.as_text()) == found, "a stored ask is another one when it is stored again"
    return ""


# -- the API server -----------------------------------------------------------------------------------------------


def _line(data: bytes) -> None:
    """One line of a watch, as far as the core that observes it; what its reflector lists again for is no matter."""
    with suppress(KubeError, *NOT_READABLE):
        _heard(data)


def _heard(data: bytes) -> None:
    line = msgspec.json.decode(data, type=reflector._Line)
    if line.type == "ERROR":
        msgspec.json.decode(line.object, type=reflector._Failure)
        return
    core = ClusterWatcher(RunId("w0"), ClusterConfig())
    told = [ListingStarted(what) for what in ("nodes", "others", "pods")]
    for read, what in ((node_capacity_only, "nodes"), (pod_usage_only, "others"), (reflector.as_it_is, "pods")):
        with suppress(msgspec.ValidationError):  # each kind is read by its own reader only
            found = read(line.object)
            reflector._version_in(found)
            told.append(Seen(what, found))
    told += [ListingEnded(what, "9") for what in ("nodes", "others", "pods")]
    for now, event in enumerate(told):
        core.handle(event, float(now))
    core.handle(Ticked(), 10.0)


def _page(data: bytes) -> None:
    with suppress(KubeError, *NOT_READABLE):
        page = msgspec.json.decode(data, type=reflector._Page)
        for item in page.items or ():
            reflector._version_in(reflector.as_it_is(item))


def _kubeconfig(path: Path) -> None:
    asyncio.run(credentials.load(path))


class _Identities(IdentityFile):
    """Identities at a path of the test's."""

    path = Path()

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self.path = path


_POD = pod(
    container(resources=gpu(gpu="1", gpumem="8000"), env=[{"name": "A", "value": "b"}]),
    container("side", securityContext={"privileged": False, "runAsUser": 1000}),
    annotations={"sluice.dev/mode": "mps", "sluice.dev/memory": "8Gi"},
    labels={"app": "a"},
    init=[container("first")],
)
_ASKS = pod(
    container(),
    annotations={"sluice.dev/request": _STORED.decode()},
    labels={"sluice.dev/managed": "true"},
    schedulingGates=[{"name": "sluice.dev/slice"}],
    nodeName="gpu-1",
)
_ASKS["metadata"] |= {
    "name": "a",
    "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
    "resourceVersion": "7",
    "generation": 1,
    "ownerReferences": [{"kind": "Job", "controller": True}],
}
_ASKS["status"] = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}],
    "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}],
}
_NODE = {
    "metadata": {"name": "gpu-1", "uid": "n", "resourceVersion": "5", "labels": {"zone": "a"}},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}], "unschedulable": False},
    "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "example.com/nic": "4"}},
}
_LINES = [
    json.dumps({"type": "ADDED", "object": _ASKS}).encode(),
    json.dumps({"type": "MODIFIED", "object": _NODE}).encode(),
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}',
    b'{"type":"ERROR","object":{"code":410,"message":"too old"}}',
]
_KUBECONFIG = b"""
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: k, cluster: {server: "https://127.0.0.1:6443"}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
users: [{name: u, user: {token: abc}}]
"""

TARGETS: tuple[Target, ...] = (
    Target("AdmissionReview", _review, [json.dumps(review_of(each)).encode() for each in (_POD, _ASKS)]),
    Target("stored ask", _stored, [_STORED]),
    Target("watch line", _line, _LINES),
    Target(
        "listed page",
        _page,
        [json.dumps({"metadata": {"resourceVersion": "7", "continue": "t"}, "items": [_ASKS, _NODE]}).encode()],
    ),
    Target("API server's refusal", kube_client._message, [b'{"kind":"Status","message":"no","code":403}']),
    Target("kubeconfig", of_file(_kubeconfig), [_KUBECONFIG], (ServiceError,), weight=0.1),
    Target(
        "identities",
        of_file(lambda path: _Identities(path).load()),
        [b'{"format":1,"identities":[{"pod":"research/a","uid":"x","asks":["1"]}]}'],
        (ServiceError,),
    ),
    Target(
        "kept certificates",
        of_text(cert_sources._decoded),
        [b'{"generations":[]}'],
        (cert_sources.CertificateUnavailableError,),
    ),
)
