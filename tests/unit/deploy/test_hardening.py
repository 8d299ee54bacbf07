"""Nobody gets more than he needs: of the host, of his own file system, of the API server's trust."""

import pytest
from deploy_check import COMPONENTS, OVERLAYS, pod_specs
from unit.deploy.reading import EVERY, Rendering, environment, every_container, named

from sluice.contracts import kubernetes as names

AGENT_PATHS = {
    "/var/lib/sluice",
    "/run/sluice",
    "/dev",
    "/var/lib/kubelet/pods",
    "/var/lib/kubelet/plugins/slice.sluice.dev",
    "/var/lib/kubelet/plugins_registry",
}


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
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == 65532
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_host_is_open_to_the_agent_alone_and_no_further_than_needed(rendered: Rendering, overlay):
    """A further path of the host is a further way out of a container."""
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
    """A token that is not there cannot be stolen."""
    objects = rendered(overlay, COMPONENTS)
    with_token = {
        owner["metadata"]["name"] for owner, spec in pod_specs(objects) if spec["automountServiceAccountToken"]
    }

    assert with_token == {"sluice-pod-watcher", "sluice-webhook"}
    assert all(not each["automountServiceAccountToken"] for each in objects if each["kind"] == "ServiceAccount")


def test_the_volume_reaches_the_kubelet_of_the_host(rendered: Rendering):
    """A mount that stays in the driver's container is an empty directory to every pod."""
    agent = named(rendered("single"), "DaemonSet", "sluice-node-agent")["spec"]["template"]["spec"]
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


def test_an_agent_sees_its_own_password_only(rendered: Rendering):
    """With another node's password an agent could write what that node has."""
    agent = named(rendered("single"), "DaemonSet", "sluice-node-agent")["spec"]["template"]["spec"]
    for container in agent["containers"]:
        for mount in container["volumeMounts"]:
            assert mount["name"] != "bus" or mount["subPathExpr"] == "$(NODE_NAME)"
    on_host = named(rendered("single", COMPONENTS), "DaemonSet", "sluice-node-agent")["spec"]["template"]["spec"]
    (volume,) = [each for each in on_host["volumes"] if each["name"] == "bus"]
    assert volume == {"name": "bus", "hostPath": {"path": "/etc/sluice/bus/password", "type": "File"}}


def test_a_single_one_does_not_stop_a_drain(rendered: Rendering):
    """A budget over one replica blocks the upgrade of its node for ever."""
    objects = rendered("ha")
    replicas = {
        owner["metadata"]["labels"]["app.kubernetes.io/component"]: owner["spec"].get("replicas")
        for owner, _ in pod_specs(objects)
    }
    budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]

    assert {each["metadata"]["name"] for each in budgets} == {
        "sluice-nats",
        "sluice-allocator",
        "sluice-pod-watcher",
        "sluice-webhook",
    }
    for budget in budgets:
        component = budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        assert replicas[component] > budget["spec"]["maxUnavailable"]
    assert not [each for each in rendered("single") if each["kind"] == "PodDisruptionBudget"]
