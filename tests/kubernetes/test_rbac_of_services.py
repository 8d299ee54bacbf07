"""What each service's account may do, by asking: all calls of a pod's life and no more; also on a broker with users."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from factories.broker.nats_server import Broker, User
from factories.cluster.account_rights import NEEDED, Right, may
from factories.cluster.cluster_system import ABSENT, DEPLOYED, SERVICE, install
from factories.cluster.described_pods import bound
from factories.cluster.kubernetes import JSON_PATCH, MERGE, STRATEGIC, Cluster, Json
from factories.cluster.watcher_process import WatcherProcess, watcher
from factories.scheduling.allocator import gpu_report, snapshot
from factories.waiting import until
from factories.words import write_of
from fake_kube.server import FakeKube

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import WriteAccepted, stream_of
from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.jetstream_bus import NatsBus

RBAC = "rbac.authorization.k8s.io"
SYSTEM, NODES = "sluice-system", "sluice-nodes"
ACCOUNTS = {
    **dict.fromkeys(("pod-watcher", "callout", "webhook", "allocator", "inventory", "nats", "streams"), SYSTEM),
    "node-agent": NODES,
}


# -- the accounts as they are deployed --------------------------------------------------------------------------------


async def give_rights(cluster: Cluster) -> None:
    """The roles of deploy/kubernetes, as `kubectl apply` would make them."""
    paths = {
        "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
        "Role": f"/apis/{RBAC}/v1/namespaces/{{}}/roles",
        "RoleBinding": f"/apis/{RBAC}/v1/namespaces/{{}}/rolebindings",
        "ClusterRole": f"/apis/{RBAC}/v1/clusterroles",
        "ClusterRoleBinding": f"/apis/{RBAC}/v1/clusterrolebindings",
    }
    async with cluster.opened() as opened:
        for document in yaml.safe_load_all((DEPLOYED / "rbac.yaml").read_text(encoding="utf-8")):
            path = paths[document["kind"]].format(document["metadata"].get("namespace", ""))
            await opened.create(path, document)


@pytest.fixture(scope="module")
def deployed(server: Cluster) -> Cluster:
    if server.fake is not None:
        asyncio.run(install(server))
        asyncio.run(give_rights(server))
    return server


@pytest.fixture
async def accounts(deployed: Cluster) -> AsyncIterator[Callable[[str], Any]]:
    """Tokens of the accounts; skips on a real cluster where Sluice is not installed."""
    async with deployed.opened() as opened:

        async def token(account: str) -> str:
            namespace, name = ACCOUNTS[account], f"sluice-{account}"
            if opened.fake is not None:
                return opened.fake.service_account_token(namespace, name)
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
            if (await opened.get(path)).code == ABSENT:
                pytest.skip("Sluice is not installed in this cluster")
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            made = await opened.create(f"{path}/token", body)
            return str(made["status"]["token"])

        yield token


# -- nothing more -----------------------------------------------------------------------------------------------------

POD = "/api/v1/namespaces/default/pods/sluice-test-absent"
NODE = "/api/v1/nodes/sluice-test-absent"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
TOKEN = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/sluice-webhook/token"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpus.sluice.dev"
ASKS: dict[str, tuple[str, str, str]] = {
    "read all secrets": ("GET", "/api/v1/secrets", ""),
    "list the secrets beside its own": ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets", ""),
    "read the broker's key": ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/sluice-nats-keys", ""),
    "read the keys of the bus": ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/sluice-bus-keys", ""),
    "read a secret of the cluster": ("GET", "/api/v1/namespaces/kube-system/secrets/sluice-test-absent", ""),
    "make a secret": ("POST", f"/api/v1/namespaces/{SYSTEM}/secrets", ""),
    "write a secret elsewhere": ("PATCH", "/api/v1/namespaces/default/secrets/sluice-webhook-tls", MERGE),
    "read others' configuration": ("GET", "/api/v1/namespaces/kube-system/configmaps", ""),
    "write others' configuration": ("PATCH", "/api/v1/namespaces/kube-system/configmaps/sluice-test-absent", MERGE),
    "read a pod by name": ("GET", POD, ""),
    "make a pod": ("POST", "/api/v1/namespaces/default/pods", ""),
    "replace a pod": ("PUT", POD, ""),
    "delete a pod": ("DELETE", POD, ""),
    "run something in a pod": ("POST", f"{POD}/exec", ""),
    "read what a pod says": ("GET", f"{POD}/log", ""),
    "add a container to a pod": ("PATCH", f"{POD}/ephemeralcontainers", STRATEGIC),
    "place a pod": ("POST", f"{POD}/binding", ""),
    "write a node": ("PATCH", NODE, MERGE),
    "write a node's status": ("PATCH", f"{NODE}/status", MERGE),
    "delete a node": ("DELETE", NODE, ""),
    "make a namespace": ("POST", "/api/v1/namespaces", ""),
    "delete a namespace": ("DELETE", "/api/v1/namespaces/sluice-test-absent", ""),
    "give rights": ("POST", f"/apis/{RBAC}/v1/clusterrolebindings", ""),
    "change rights": ("PATCH", f"/apis/{RBAC}/v1/clusterroles/sluice-pod-watcher", MERGE),
    "have a token of another account": ("POST", TOKEN, ""),
    "change another webhook": ("PATCH", f"{ADMISSION}/mutatingwebhookconfigurations/sluice-test-absent", JSON_PATCH),
    "add a webhook": ("POST", f"{ADMISSION}/mutatingwebhookconfigurations", ""),
    "delete its webhook": ("DELETE", f"{ADMISSION}/mutatingwebhookconfigurations/sluice", ""),
    "change a policy": ("PATCH", f"{ADMISSION}/validatingadmissionpolicies/sluice-keep", MERGE),
    "take others' leases": ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x", MERGE),
    "run a workload": ("POST", "/apis/apps/v1/namespaces/default/deployments", ""),
    "change what a resource is": ("PATCH", DEFINITION, MERGE),
}
KEEPS = {"read the broker's key", "read the keys of the bus"}
"""What the callout does."""
REVIEWS = {
    "be another user": Right("impersonate", "users"),
    "be in another group": Right("impersonate", "groups"),
    "be another account": Right("impersonate", "serviceaccounts"),
    "give more than it has": Right("escalate", "clusterroles", RBAC),
    "bind any role": Right("bind", "clusterroles", RBAC),
    "do anything": Right("*", "*", "*"),
}


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_an_account_can_do_nothing_that_its_service_does_not(deployed: Cluster, accounts, account: str) -> None:
    """What an attacker could do with a service's token."""
    token = await accounts(account)
    async with deployed.opened() as kube:
        for what, (method, path, kind) in ASKS.items():
            if account == "callout" and what in KEEPS:
                continue
            body: Any = [] if kind == JSON_PATCH else {} if method in {"POST", "PUT", "PATCH"} else None
            # A dry run: an account that can do too much takes nothing of a real cluster away while it is found out.
            dry = {} if method == "GET" else {"dryRun": "All"}
            reply = await kube.ask(method, path, body, kind=kind or "application/json", token=token, **dry)
            assert reply.code == 403, f"{account} can {what}: {reply}"
        for what, right in REVIEWS.items():
            assert not await may(kube, token, right), f"{account} can {what}"


NOT_IN_AN_HOUR = {
    ("bind", "slices"),
    ("patch", "events"),
    ("patch", "resourceclaims/binding"),
    ("patch", "resourceclaims"),
}
"""
Rights that a policy and the API server ask for by name; the series of an Event, not written before half an hour of
waiting; and the finalizer of a claim, which those of the webhook have from the start.
"""


@pytest.mark.parametrize("account", NEEDED)
async def test_an_account_may_do_what_its_service_does(deployed: Cluster, accounts, account: str) -> None:
    """A missing right leaves a pod waiting forever, with a 403 in the log."""
    token = await accounts(account)
    async with deployed.opened() as kube:
        for right in sorted(NEEDED[account]):
            assert await may(kube, token, right), f"{account} may not {right}"


# -- all that is needed -----------------------------------------------------------------------------------------------


class Site:
    """A fake cluster with Sluice's accounts, a broker with its users, and the test as allocator and inventory."""

    def __init__(
        self, kube: FakeKube, cluster: Cluster, broker: Broker, buses: dict[Role, NatsBus], folder: Path
    ) -> None:
        """`folder` holds passwords and logs."""
        self.kube, self.cluster, self.folder = kube, cluster, folder
        self._broker, self._buses = broker, buses
        self._number = 0

    @contextlib.asynccontextmanager
    async def process(self, role: str, account: str, **settings: str) -> AsyncIterator[WatcherProcess]:
        """The pod-watcher in a role, with the token of an account."""
        token = self.kube.service_account_token(SYSTEM, f"sluice-{account}")
        own = {
            "ROLE": role,
            "KUBECONFIG": str(self.kube.kubeconfig(self.folder / f"{role}.kubeconfig", token=token)),
            "WEBHOOK_ADDRESS": "127.0.0.1:0",
            "SLUICE_NATS_URL": self._broker.url,
            "SLUICE_NATS_USER": Role.POD_WATCHER.value,
            "SLUICE_NATS_PASSWORD_FILE": str(self.folder / Role.POD_WATCHER.value),
        }
        async with watcher(self.folder / f"{role}.log", **(own | settings)) as process:
            yield process

    async def say(self, role: Role, address: Address, message: msg.AnyMessage) -> None:
        bus, stream = self._buses[role], stream_of(address.kind)
        last = await bus.last(stream, address.subject)
        self._number += 1
        write = write_of(address, message, last, f"test-{self._number}")
        assert isinstance(await bus.write(write, {}), WriteAccepted)

    async def said(self, address: Address, kind: type) -> Any:
        """The last value of a noun, once it is of this kind."""
        bus = self._buses[Role.ALLOCATOR]

        async def look() -> Any:
            entry = await bus.last(stream_of(address.kind), address.subject)
            return entry.message if entry is not None and isinstance(entry.message, kind) else None

        return await until(look, f"{kind.__name__} at {address.subject}")

    async def claims(self) -> None:
        """A volume claim that is bound, and one that is bound when its first pod is placed."""
        claims = "/api/v1/namespaces/default/persistentvolumeclaims"
        for path, name, rest in (
            ("/api/v1/persistentvolumes", "pv-1", {"spec": {}}),
            (claims, "bound", {"spec": {"volumeName": "pv-1"}}),
            (claims, "late", {"spec": {"storageClassName": "late"}}),
            ("/apis/storage.k8s.io/v1/storageclasses", "late", {"volumeBindingMode": "WaitForFirstConsumer"}),
        ):
            await self.cluster.create(path, {"metadata": {"name": name}, **rest})

    async def pod(self, name: str, *claims: str, namespace: str = "default") -> tuple[RequestId, Json]:
        volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
        meta, spec = (
            {"name": name, "annotations": {"sluice.dev/profile": "1g.5gb"}},
            {"containers": [{"name": "main", "image": "train:1"}], "volumes": volumes},
        )
        made = await self.cluster.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})
        return RequestId(made["metadata"]["uid"]), made

    def calls(self, account: str) -> set[tuple[str, str]]:
        user = f"system:serviceaccount:{SYSTEM}:sluice-{account}"
        return {(verb, path) for who, verb, path in self.kube.front.requests if who == user}


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    roles = (Role.ADMINISTRATOR, Role.POD_WATCHER, Role.ALLOCATOR, Role.INVENTORY)
    users = tuple(User(permissions_of(role), secrets.token_hex(8)) for role in roles)
    for user in users:
        (tmp_path / user.rights.user).write_text(f"{user.password}\n")
    credentials = {role: Credentials(role.value, user.password) for role, user in zip(roles, users, strict=True)}
    with FakeKube() as kube:
        for node in ("n1", "n2"):
            kube.nodes.add(node, cpu="64", memory="512Gi")
        kube.nodes.tickets(lambda _node, _path: True)
        cluster = Cluster(kube.kubeconfig(tmp_path / "config"), kube)
        await install(cluster)
        await give_rights(cluster)
        async with contextlib.AsyncExitStack() as stack:
            broker = await stack.enter_async_context(
                Broker(tmp_path / "nats", users=users, probe=credentials[Role.ADMINISTRATOR])
            )
            opened = await stack.enter_async_context(cluster.opened())
            buses = {}
            for role in roles:
                if role is not Role.POD_WATCHER:
                    buses[role] = await NatsBus.connect(broker.url, name=role.value, credentials=credentials[role])
                    stack.push_async_callback(buses[role].close)
            await buses[Role.ADMINISTRATOR].ensure_streams()
            yield Site(kube, opened, broker, buses, tmp_path)


def inventory(*, removed: bool = False) -> msg.NodeInventory:
    """The inventory's message about n1."""
    return msg.NodeInventory(snapshot=snapshot("n1", (gpu_report("n1", 0),)), stale=removed, removed=removed)


async def test_the_services_live_a_whole_pod_life_with_the_rights_they_have(site: Site) -> None:
    """Nothing is refused to them, by the API server or the broker; and they have no right that they do not use."""
    async with site.process("webhook", "webhook") as webhook:
        site.kube.route_service(*SERVICE, host="127.0.0.1", port=await webhook.port("webhook"))
        await webhook.line("the caBundle is published")
        async with site.process("watch", "pod-watcher", NODE_REMOVED_AFTER_S="1") as watch:
            await _live(site)
            said = watch.text + webhook.text
            assert await watch.stop() == 0, watch.text
        assert await webhook.stop() == 0, webhook.text
    assert site.kube.front.forbidden == []
    assert "ermissions violation" not in said.lower(), said
    for account, rights in NEEDED.items():
        if account == "callout":  # tests/unit/deploy/test_enrolment.py
            continue
        granted = {(right.verb, right.resource) for right in rights}
        assert site.calls(account) == granted - NOT_IN_AN_HOUR, account


async def _live(site: Site) -> None:
    """Two pods: one is served at once and evicted, one waits; GPUs are mirrored; a node goes."""
    await site.claims()
    served, stored = await site.pod("served", "bound", "late")
    assert stored["spec"]["schedulingGates"] == [{"name": "sluice.dev/slice"}]
    waiting, _ = await site.pod("waiting")
    for request in (served, waiting):
        await site.said(subjects.request(request), msg.AllocationRequested)
    reason = ReasonCount(reason=WaitReason.NODE_NOT_OPEN, count=2, of="nodes")
    pending = msg.Pending(request=waiting, request_revision=1, message="2 nodes are not open yet", reasons=(reason,))
    await site.say(Role.ALLOCATOR, subjects.waiting(waiting), pending)
    await site.say(Role.ALLOCATOR, subjects.binding(served), bound(served, node=NodeName("n1")))
    await until(lambda: _pod(site, "served", lambda pod: pod["spec"].get("nodeName") == "n1"), "the pod on its node")
    await until(lambda: _pod(site, "waiting", _is_told_to_wait), "the waiting pod's condition")
    await _live_by_claim(site)
    await site.say(Role.INVENTORY, subjects.inventory(NodeName("n1")), inventory())
    await until(lambda: _gpus(site, 1), "the GPU to be shown")
    await site.say(Role.INVENTORY, subjects.inventory(NodeName("n1")), inventory(removed=True))
    await until(lambda: _gpus(site, 0), "the GPU to be shown no more")
    order = msg.EvictionOrdered(request=served, cause="a pod of a higher priority needs its place")
    await site.say(Role.ALLOCATOR, subjects.eviction(served), order)
    await site.said(subjects.evicted(served), msg.EvictionDone)
    site.kube.nodes.remove("n2")
    await site.said(subjects.node(NodeName("n2")), msg.NodeRemoved)


async def _live_by_claim(site: Site) -> None:
    """A pod whose kubelet hands its devices over: its claim is made, allocated, reserved, and gone with it."""
    labels = {"sluice.dev/hand-over": "dra"}
    await site.cluster.create("/api/v1/namespaces", {"metadata": {"name": "dra", "labels": labels}})
    request, stored = await site.pod("handed", namespace="dra")
    (entry,) = stored["spec"]["resourceClaims"]
    (ref,) = (await site.said(subjects.request(request), msg.AllocationRequested)).resource_claims
    assert (ref.name, ref.requests) == (entry["resourceClaimName"], {"main": "main"})
    await site.say(Role.ALLOCATOR, subjects.binding(request), bound(request, node=NodeName("n1")))

    await until(
        lambda: _pod(site, "handed", lambda pod: pod["status"].get("phase") == "Running", "dra"),
        "the pod to run with its claim",
    )
    claim = site.kube.get("resourceclaims.resource.k8s.io", "dra", ref.name)
    assert claim["metadata"]["uid"] == ref.uid
    assert claim["status"]["allocation"]["allocationTimestamp"]
    assert [each["uid"] for each in claim["status"]["reservedFor"]] == [request]
    await site.cluster.delete("/api/v1/namespaces/dra/pods/handed")
    await until(
        lambda: site.kube.get("resourceclaims.resource.k8s.io", "dra", ref.name) is None, "the claim to go with its pod"
    )
    await until(
        lambda: (site.kube.get("configmaps", SYSTEM, "sluice-hand-over") or {}).get("data") == {"mode": "tickets"},
        "how new pods get their devices, for admission to read",
    )


def _pod(site: Site, name: str, right: Callable[[Json], Any], namespace: str = "default") -> bool:
    pod = site.kube.get("pods", namespace, name)
    return pod is not None and bool(right(pod))


def _is_told_to_wait(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any("not open yet" in each.get("message", "") for each in conditions)


def _gpus(site: Site, count: int) -> bool:
    gpus = site.kube.all("gpus.sluice.dev")
    return len(gpus) == count and all("status" in each for each in gpus)
