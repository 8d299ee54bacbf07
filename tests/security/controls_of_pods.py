"""Controls against what a tenant writes: into a pod, its annotations, a manifest, and what it mounts."""

import os
import struct
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from factories.cluster.admission import answer, container, env_of, from_grant, pod, sent_patch
from factories.cluster.admission import patched as patched_pod
from security.controls import changed, control, finds_nothing, shipped

from sluice.contracts.dra.names import POD_CLAIM
from sluice.contracts.kube.names import GATE, claim_name
from sluice.contracts.manifests import ManifestLimits, read_manifests
from sluice.contracts.messages import QuotaSet
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import ContainerRequest, RequestLimits, parse_pod
from sluice.contracts.request_syntax.sluice_keys import KEYS
from sluice_allocator.core.state.context import Context
from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.core.quota import wire
from sluice_node_agent.core.quota.events import QuotaConfig, TenantSet
from sluice_node_agent.core.quota.tenants import Tenant
from sluice_node_agent.core.slices import create
from sluice_node_agent.csi.kubelet_paths import NoTarget, PurePath, target_of
from sluice_node_agent.device.mps.control import limits_in
from sluice_node_agent.device.mps.home_directory import HomeDirectory, HomeOwner

ASKS = {"sluice.dev/profile": "1g.5gb"}
_HASTY = QuotaConfig(patience_us=10_000)
_WIDE = replace(ManifestLimits(), nodes_max=10**9)
_RULES = "sluice.contracts.admission"
_AGENT = "sluice_node_agent"


def _denied(made: dict, what: str) -> None:
    assert not answer(made).allowed, f"{what} was let in"


@control("devices are not chosen by hand", f"{_RULES}.validation.validate_env", finds_nothing)
def _all_gpus() -> None:
    every = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    _denied(pod(container(), container("side", env=every), annotations=ASKS), "every GPU")
    _denied(pod(container(env=[every[0] | {"value": "0"}]), annotations=ASKS), "a GPU by its index")
    made = pod(container(env=every), annotations=ASKS)
    seen = env_of(patched_pod(made, sent_patch(answer(made))), "main")["NVIDIA_VISIBLE_DEVICES"]
    assert seen == from_grant("main", "visible-devices"), "a container sees every GPU beside what it was given"


@control("images see no GPU without a request", "sluice_pod_watcher.admission.mutate.sees_all_gpus", lambda *_: False)
def _image() -> None:
    found = answer(pod(container(), runtimeClassName="nvidia"))
    written = [each["value"] for each in found.patch if each["path"].endswith("/env")]
    assert written == [[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]], "an image sees every GPU of its node"


@control("debug containers get no GPU", "sluice_pod_watcher.admission.mutate.hide_gpus_from_ephemeral", finds_nothing)
def _debug_container() -> None:
    made = pod(container(), labels={"sluice.dev/managed": "true"})
    new = {**made, "spec": {**made["spec"], "ephemeralContainers": [{"name": "debug"}]}}
    found = answer(new, operation="UPDATE", subResource="ephemeralcontainers", oldObject=made)
    assert sent_patch(found), "the image of a debug container chooses its GPUs"


@control("the scheduler sets the least patience", f"{__name__}.QuotaConfig", lambda: _HASTY)
def _impatient_tenant() -> None:
    told = wire.written(Tenant.new(TenantSet("a", 10, 100, 100, 0), QuotaConfig()).quota(1, is_news=False), 1)
    assert struct.unpack_from("<Q", told, 56)[0] >= 500_000, "a tenant goes on without tokens after any pause"


@control("priorities have ceilings", f"{__name__}.Context.priority_of", lambda _self, _namespace, asked: asked)
def _high_priority() -> None:
    context = _Plain({"facts": _Plain({"quotas": {"red": QuotaSet(namespace="red", priority_max=5)}})})
    assert Context.priority_of(context, "red", 999_999_999) <= 5, "any namespace evicts the pods of others"


@control("no host path into Sluice's directories", f"{_RULES}.validation.validate_volumes", finds_nothing)
def _host_directory() -> None:
    volumes = [{"name": "h", "hostPath": {"path": "/run/sluice/mps"}}]
    _denied(pod(annotations=ASKS, volumes=volumes), "the directory of all daemons")


@control("no host IPC with a share", f"{_RULES}.reserved_fields.validate_host_namespaces", finds_nothing)
def _host_ipc() -> None:
    _denied(pod(annotations={"sluice.dev/mode": "mps", "sluice.dev/memory": "4Gi"}, hostIPC=True), "shared memory")


@control("no privileged tenants", f"{_RULES}.reserved_fields.validate_security_context", finds_nothing)
def _privileged() -> None:
    made = pod(container(securityContext={"privileged": True}), annotations=ASKS)
    _denied(made, "a container that sees every device")


@control("only Sluice writes grants", f"{_RULES}.reserved_fields.validate_granted_annotations", finds_nothing)
def _forged_grant() -> None:
    _denied(pod(annotations={**ASKS, "main.granted.sluice.dev/visible-devices": "all"}), "a grant of its own")


@control("only Sluice sets gates", f"{_RULES}.reserved_fields.validate_marks", finds_nothing)
def _gate_by_hand() -> None:
    _denied(pod(schedulingGates=[{"name": GATE}]), "our gate without our review")


@control("a claim of one pod serves no other", f"{_RULES}.pod_claims.validate_entries", finds_nothing)
def _claim_of_another() -> None:
    claims = [{"name": "x", "resourceClaimName": claim_name("another pod")}]
    _denied(pod(annotations=ASKS, resourceClaims=claims), "the ResourceClaim of another pod")
    own = [{"name": POD_CLAIM, "resourceClaimName": claim_name("another pod")}]
    _denied(pod(annotations=ASKS, resourceClaims=own), "the ResourceClaim of another pod under our name")


@control("annotations are known keys", "sluice.contracts.request_syntax.sluice_keys.KEYS", (*KEYS, "command"))
def _annotation() -> None:
    found = parse_pod({"sluice.dev/command": "rm -rf /"}, (ContainerRequest("main"),), limits=RequestLimits())
    assert isinstance(found, Refusal), "an unknown key was read"
    assert found.reason is RefusalReason.UNKNOWN_KEY


@control("YAML has bounds", f"{__name__}.ManifestLimits", lambda: _WIDE)
def _alias_bomb() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}' if n else 'x'] * 9)}]" for n in range(7))
    found = read_manifests("f.yaml", levels, limits=ManifestLimits(), asks=RequestLimits())
    assert isinstance(found, Refusal), "a text that stands for five million values was taken"
    assert found.reason is RefusalReason.TOO_LARGE


@control("volumes have one place", f"{_AGENT}.csi.kubelet_paths.is_pod_uid", lambda _: True)
def _path_of_a_volume() -> None:
    root = PurePath("/var/lib/kubelet")
    found = target_of(f"{root}/pods/../volumes/kubernetes.io~csi/v/mount", root)
    assert isinstance(found, NoTarget), "root would mount above the kubelet's directory"


@control("admission fails closed", f"{__name__}.shipped", changed("failurePolicy: Fail", "failurePolicy: Ignore"))
def _fail_closed() -> None:
    documents = [*yaml.safe_load_all(shipped("admission/webhook.yaml"))]
    documents += yaml.safe_load_all(shipped("admission/policy-no-side-door.yaml"))
    hooks = [hook for each in documents for hook in each.get("webhooks", ())]
    policies = [each["spec"]["failurePolicy"] for each in documents if each["kind"].endswith("Policy")]
    assert hooks
    assert {hook["failurePolicy"] for hook in hooks} == {"Fail"}, "who makes the webhook fail gets round it"
    assert policies == ["Fail"], "who makes the policy fail gets round it"


# -- shares -------------------------------------------------------------------------------------------------------


@dataclass
class _Plain:
    """Something with fields, where the real thing has many more."""

    fields: dict

    def __getattr__(self, name: str):
        return self.fields[name]


@control("one namespace and user per daemon", f"{_AGENT}.core.slices.create._why_not_in", lambda *_: "")
def _strangers_server() -> None:
    grant = _Plain({"share": _Plain({"uid": 2}), "gpu": "GPU-1", "start": 0, "size": 4, "profile": "3g.20gb"})
    record = _Plain({"namespace": "red", "uid": 1, "profile": "3g.20gb", "phase": "making"})
    home = _Plain({"record": record, "failures": 0, "trouble": ""})
    rules = _Plain({"quarantine_after": 3})
    wanted = _Plain({"booking": _Plain({"namespace": "red"})})
    why = create._why_not_in(wanted, grant, home, _Plain({"devices": None}), rules)
    assert "cannot join" in why, "two users share one MPS server"


@control(
    "only its tenants see a daemon's directory",
    f"{_AGENT}.device.mps.home_directory.HomeDirectory.prepare",
    lambda home, _: home.pipe.mkdir(parents=True, mode=0o755),
)
def _pipe_directory() -> None:
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o711)
        home = HomeDirectory(Path(root), "h1")
        home.prepare(HomeOwner(gpu="GPU-1", device="MIG-1", namespace="red", uid=os.geteuid()))
        assert home.pipe.stat().st_mode & 0o077 == 0, "any user on the node reaches the daemon's sockets"
        assert home.path.stat().st_mode & 0o066 == 0, "any user on the node sees what is in a home"


@control("limits are read back from the server", f"{_AGENT}.device.mps.control.ServerLimits.mismatch", lambda *_: "")
def _memory_limit() -> None:
    ordered = MpsLimits(active_thread_percentage=30, memory_mib=4096)
    assert limits_in(["30.0", "8G"]).mismatch(ordered), "a server with twice the memory was taken for ready"
