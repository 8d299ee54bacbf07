"""No service gets more than it needs: of the host, of its own file system, of the API server's trust."""

import itertools

import pytest
from deploy_check import COMPONENTS, OVERLAYS, pod_specs
from unit.deploy.reading import EVERY, Rendering, environment, every_container, pod_of

from sluice.contracts.dra.names import DRIVER
from sluice.contracts.kube import names
from sluice.contracts.kube.quantities import parse_quantity
from sluice_pod_watcher.shell.webhook.handlers import ServingLimits

KUBELET = "/var/lib/kubelet"
OF_KUBELET = {"pods", "plugins/slice.sluice.dev", "plugins/gpu.sluice.dev", "plugins_registry"}
AGENT_PATHS = {"/var/lib/sluice", "/run/sluice", "/dev", "/var/run/cdi", *(f"{KUBELET}/{path}" for path in OF_KUBELET)}


@pytest.mark.parametrize(("overlay", "components"), EVERY)
def test_only_the_agent_is_privileged(rendered: Rendering, overlay, components):
    """Each other container passes Pod Security `restricted`, on a file system that it cannot change."""
    objects = rendered(overlay, components)
    for owner, spec, container in every_container(objects):
        security = {**spec.get("securityContext", {}), **container["securityContext"]}
        assert security["readOnlyRootFilesystem"] is True
        assert "limits" in container["resources"]
        if security.get("privileged"):
            assert owner["metadata"]["name"] == "sluice-node-agent"
            continue
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 65532)
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_webhook_has_the_memory_for_what_it_lets_in(rendered: Rendering):
    """A client that reaches its port could have it killed repeatedly: then no pod that asks for a GPU is created."""
    (limit,) = [
        container["resources"]["limits"]["memory"]
        for owner, _, container in every_container(rendered("single"))
        if owner["metadata"]["name"] == "sluice-webhook"
    ]
    limits = ServingLimits()
    bodies = limits.reviews_max * limits.body_bytes_max * 9 // 8  # a growing buffer has room for an eighth more
    as_objects = 26 * limits.body_bytes_max  # [{},{},...]: 64 bytes for each, and 8 for its place, of 3
    assert parse_quantity(limit) > bodies + as_objects + 60 * 1024**2  # and itself


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_host_is_open_to_the_agent_alone_and_no_further_than_needed(rendered: Rendering, overlay):
    objects = rendered(overlay)
    for owner, spec in pod_specs(objects):
        paths = {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
        is_agent = owner["metadata"]["name"] == "sluice-node-agent"
        expected = AGENT_PATHS - ({"/dev"} if overlay == "simulated" else set()) if is_agent else set()
        assert paths == expected
        assert spec.get("hostPID", False) is is_agent
        assert not spec.get("hostNetwork")
        assert not spec.get("hostIPC")
        assert (owner["metadata"]["namespace"] == "sluice-nodes") is is_agent
    levels = {
        each["metadata"]["name"]: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for each in objects
        if each["kind"] == "Namespace"
    }
    assert levels == {"sluice-system": "restricted", "sluice-nodes": "privileged"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_who_calls_the_api_server_has_a_token(rendered: Rendering, overlay):
    objects = rendered(overlay, COMPONENTS)
    with_token = {each["metadata"]["name"] for each, spec in pod_specs(objects) if spec["automountServiceAccountToken"]}
    assert with_token == {"sluice-pod-watcher", "sluice-webhook", "sluice-callout"}
    assert all(not each["automountServiceAccountToken"] for each in objects if each["kind"] == "ServiceAccount")


def test_the_volume_reaches_the_kubelet_of_the_host(rendered: Rendering):
    """A mount that stays in the driver's container is an empty directory to every pod."""
    agent = pod_of(rendered("single"), "DaemonSet", "sluice-node-agent")
    assert [container["name"] for container in agent["containers"]] == ["csi", "node-agent"]
    for container in agent["containers"]:
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        seen = environment(container)
        assert mounts["/run/sluice"]["mountPropagation"] == "Bidirectional"
        assert seen["SLUICE_NODE_AGENT_PODS_DIR"].startswith("/run/sluice/")
        if seen["SLUICE_NODE_AGENT_ROLE"] == "csi":
            root = seen["SLUICE_NODE_AGENT_KUBELET_ROOT"]
            assert mounts[f"{root}/pods"]["mountPropagation"] == "Bidirectional"
            assert {f"{root}/plugins/{names.CSI_DRIVER}", f"{root}/plugins_registry"} <= set(mounts)
        else:
            assert {f"{KUBELET}/plugins/{DRIVER}", f"{KUBELET}/plugins_registry", "/var/run/cdi"} <= set(mounts)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_secret_reaches_a_node_and_each_service_sees_its_own(rendered: Rendering, overlay):
    """A secret of all nodes on each of them would let an attacker of one act for all."""
    mounted: dict[str, set[str]] = {}
    for owner, spec in pod_specs(rendered(overlay)):
        volumes = [each for volume in spec["volumes"] for each in volume.get("projected", {}).get("sources", [volume])]
        found = {each["secret"].get("secretName") or each["secret"]["name"] for each in volumes if "secret" in each}
        mounted[owner["metadata"]["labels"]["app.kubernetes.io/component"]] = found
    own = {name: {f"sluice-grpc-{name}"} for name in ("allocator", "inventory", "web")}
    assert {name: found for name, found in mounted.items() if found} == own | {"nats": {"sluice-nats-keys"}}


@pytest.mark.parametrize(("overlay", "components"), EVERY)
def test_grpc_is_never_plain_text_in_a_cluster(rendered: Rendering, overlay, components):
    """A stranger on the network could read which pod is where, and answer for a node."""
    speaking = set()
    for owner, spec, container in every_container(rendered(overlay, components)):
        seen = environment(container)
        assert "SLUICE_GRPC_PLAIN_TEXT" not in seen
        if not any(name.endswith(("_GRPC_ADDRESS", "_GRPC_CERTIFICATE_FILE")) for name in seen):
            continue
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        whose = owner["metadata"]["labels"]["app.kubernetes.io/component"]
        speaking.add(whose)
        own = () if whose == "node-agent" else ("CERTIFICATE", "KEY")  # an agent makes its own
        for setting in (*own, "CA"):
            folder, _, file = seen[f"SLUICE_GRPC_{setting}_FILE"].rpartition("/")
            sources = volumes[mounts[folder]]["projected"]["sources"]
            kind, name = ("configMap", "sluice-grpc-ca") if setting == "CA" else ("secret", f"sluice-grpc-{whose}")
            (source,) = [each[kind] for each in sources if kind in each]
            assert source["name"] == name
            assert file in {item["path"] for item in source["items"]}
    assert speaking == {"allocator", "inventory", "node-agent", "web"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_who_hangs_is_started_again_and_who_waits_for_the_bus_is_not(rendered: Rendering, overlay):
    """A probe that asks for more than a new start mends would restart everything whenever the broker is away."""
    probed = set()
    probes = {"startupProbe": "liveness", "readinessProbe": "readiness", "livenessProbe": "liveness"}
    for _, _, container in every_container(rendered(overlay)):
        for probe, wanted in probes.items():
            if asked := container.get(probe, {}).get("grpc"):
                probed.add((container["name"], probe))
                (address,) = [at for name, at in environment(container).items() if name.endswith("_HEALTH_ADDRESS")]
                assert asked == {"service": wanted, "port": int(address.rpartition(":")[2])}
                assert asked["port"] in {port["containerPort"] for port in container["ports"]}
    names_of_services = ("allocator", "inventory", "node-agent", "csi")
    assert probed == set(itertools.product(names_of_services, probes)) - {("csi", "startupProbe")}


def test_a_single_one_does_not_stop_a_drain(rendered: Rendering):
    """A budget over one replica blocks the upgrade of its node for ever."""
    objects, component = rendered("ha"), "app.kubernetes.io/component"
    replicas = {each["metadata"]["labels"][component]: each["spec"].get("replicas") for each, _ in pod_specs(objects)}
    budgets = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "PodDisruptionBudget"}
    assert set(budgets) == {f"sluice-{name}" for name in ("nats", "allocator", "callout", "pod-watcher", "webhook")}
    for budget in budgets.values():
        assert replicas[budget["selector"]["matchLabels"][component]] > budget["maxUnavailable"]
    assert not [each for each in rendered("single") if each["kind"] == "PodDisruptionBudget"]
