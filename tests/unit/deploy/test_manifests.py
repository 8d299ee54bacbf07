"""What is applied can be applied, starts what it means to start, and gives no service more than it needs."""

import re
from collections import defaultdict

import deploy_check
import pytest
from deploy_check import COMPONENTS, OVERLAYS, Document, containers, pod_specs
from unit.deploy import reading
from unit.deploy.reading import EVERY, Rendering, environment, every_container, named, nats_config, pod_of, settings_of

from sluice.contracts.bus.store_sizes import HISTORY_BYTES_MAX, STORE_BYTES_MAX, VOLUME_BYTES
from sluice.contracts.kube import names
from sluice.runtime.addresses import host_and_port


@pytest.mark.parametrize("path", deploy_check.yaml_files(), ids=lambda path: str(path.relative_to(deploy_check.DEPLOY)))
def test_a_file_reads_well(path):
    """One style, and no key twice: YAML would silently take the last."""
    assert list(deploy_check.problems_of_style(path)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("overlay", "components"), EVERY)
def test_an_api_server_knows_every_field(rendered: Rendering, overlay, components):
    """A misspelt field is dropped by `kubectl apply`, and with it what it should have done."""
    for document in rendered(overlay, components):
        assert list(deploy_check.problems_of_schema(document, "")) == []


def test_the_check_finds_what_it_is_for():
    """A field that does not exist and an image from a registry are found, in every version."""
    wrong = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dada": {}}
    assert len(list(deploy_check.problems_of_schema(wrong, ""))) == len(deploy_check.VERSIONS)
    assert "names the registry" in deploy_check.problem_of_image("registry.example/sluice:1")
    assert "has no tag" in deploy_check.problem_of_image("sluice-allocator")
    assert "has no tag" in deploy_check.problem_of_image("sluice-allocator:latest")
    assert deploy_check.problem_of_image("jaegertracing/jaeger:2.11.0") == ""


@pytest.mark.parametrize(("overlay", "components"), EVERY)
def test_images_have_a_version_and_no_registry(rendered: Rendering, overlay, components):
    """Clusters have mirrors of their own; with `latest` the registry would choose what runs."""
    assert list(deploy_check.problems_of_images(rendered(overlay, components), "")) == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_name_that_is_mounted_or_used_is_there(rendered: Rendering, overlay):
    """A pod whose ConfigMap, Secret, account or priority has another name never starts."""
    objects = rendered(overlay)
    there = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in objects}
    for owner, spec in pod_specs(objects):
        namespace = owner["metadata"]["namespace"]
        assert ("ServiceAccount", namespace, spec["serviceAccountName"]) in there
        if "priorityClassName" in spec:
            assert ("PriorityClass", "", spec["priorityClassName"]) in there
        volumes = {volume["name"] for volume in spec["volumes"]}
        claims = {each["metadata"]["name"] for each in owner["spec"].get("volumeClaimTemplates", ())}
        for volume in (one for each in spec["volumes"] for one in each.get("projected", {}).get("sources", [each])):
            if "secret" in volume:
                secret = volume["secret"]
                assert ("Secret", namespace, secret.get("secretName") or secret["name"]) in there
            if "configMap" in volume and not volume["configMap"].get("optional"):
                assert ("ConfigMap", namespace, volume["configMap"]["name"]) in there
        mounted = {mount["name"] for container in containers(spec) for mount in container["volumeMounts"]}
        assert mounted == volumes | claims


@pytest.mark.parametrize(("components", "kind"), [((), "emptyDir"), (("record-claim",), "persistentVolumeClaim")])
def test_use_over_time_is_kept_where_the_inventory_may_write(rendered: Rendering, components, kind):
    """A report would be empty, or cut off when a new pod waits for the volume of the old one."""
    objects = rendered("ha", components)
    deployment = named(objects, "Deployment", "sluice-inventory")
    (container,) = (spec := deployment["spec"]["template"]["spec"])["containers"]
    known = settings_of(container)
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == str(known.record_file.parent)]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert set(volume) == {"name", kind}
    assert "readOnly" not in mount
    assert host_and_port(known.grpc_address)[0] == reading.VALUES["status.podIP"], "reports are asked for there"
    if kind == "persistentVolumeClaim":
        named(objects, "PersistentVolumeClaim", volume[kind]["claimName"])
        assert deployment["spec"]["strategy"]["type"] == "Recreate"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_limits_are_read_where_they_are_mounted_and_no_upgrade_empties_them(rendered: Rendering, overlay):
    """Applying a ConfigMap of ours would lift every limit; one in a subPath is never read again."""
    objects = rendered(overlay)
    spec = pod_of(objects, "Deployment", "sluice-pod-watcher")
    (container,) = spec["containers"]
    file = settings_of(container).limits_file
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == str(file.parent)]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert (volume["configMap"], "subPath" in mount) == ({"name": "sluice-limits", "optional": True}, False)
    assert not [each for each in objects if each["metadata"]["name"] == "sluice-limits"]


def test_three_brokers_know_one_another_by_their_own_names(rendered: Rendering):
    """A route to a name that no server has leaves the cluster without a majority after one failure."""
    objects = rendered("ha")
    broker = named(objects, "StatefulSet", "sluice-nats")["spec"]
    replicas, service = broker["replicas"], broker["serviceName"]
    routes = set(re.findall(r"nats-route://([^:]+):6222", nats_config(objects)))
    assert routes == {f"sluice-nats-{n}.{service}.sluice-system.svc" for n in range(replicas)}
    assert replicas == 3
    assert named(objects, "Service", service)["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize(("overlay", "components"), EVERY)
def test_every_service_understands_its_environment(rendered: Rendering, overlay, components):
    """A service ends at once over a variable that it does not know, or that it cannot read."""
    looked_at = 0
    for _, _, container in every_container(rendered(overlay, components)):
        if settings := settings_of(container):
            assert settings.log_format == "json" or "SLUICE_LOG_FORMAT" not in environment(container)
            looked_at += 1
    assert looked_at >= 6


def test_time_is_enforced_by_default(rendered: Rendering):
    """A fractional pod is promised a part of the time that its neighbours take; or the quota cannot be switched off."""
    found = []
    for components in ((), ("no-time-quota",)):
        agent = pod_of(rendered("single", components), "DaemonSet", "sluice-node-agent")
        (container,) = [each for each in agent["containers"] if each["name"] == "node-agent"]
        found.append(settings_of(container).quota_library)
    assert found == ["", "off"]


def test_what_the_webhook_looks_for_is_what_is_applied(rendered: Rendering):
    """Under another name its certificate is stored nowhere, valid for no Service, or unknown to the API server."""
    objects = rendered("single")
    container = pod_of(objects, "Deployment", "sluice-webhook")["containers"][0]
    loaded = settings_of(container)
    service = named(objects, "Service", loaded.webhook_service)
    assert service["metadata"]["namespace"] == loaded.namespace
    assert named(objects, "Secret", loaded.tls_secret)["metadata"]["namespace"] == loaded.namespace
    webhooks = named(objects, "MutatingWebhookConfiguration", loaded.webhook_configuration)["webhooks"]
    services = [each["clientConfig"]["service"] for each in webhooks]
    assert {(each["namespace"], each["name"]) for each in services} == {(loaded.namespace, loaded.webhook_service)}
    exempt = {each["key"]: each for each in webhooks[0]["namespaceSelector"]["matchExpressions"]}
    assert set(exempt["kubernetes.io/metadata.name"]["values"]) == loaded.admission_config().exempt_namespaces


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_probed_and_served_is_listened_at(rendered: Rendering, overlay):
    """A probe or a Service on an unused port never becomes ready."""
    objects = rendered(overlay, COMPONENTS)
    ports_of: dict[str, dict[str, int]] = {}
    for owner, _, container in every_container(objects):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        ports_of.setdefault(owner["metadata"]["labels"]["app.kubernetes.io/component"], {}).update(ports)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for how in ("httpGet", "tcpSocket"):
                if how in container.get(probe, {}):
                    assert container[probe][how]["port"] in ports
        for variable, address in environment(container).items():
            if variable.endswith("_ADDRESS"):
                assert int(address.rpartition(":")[2]) in ports.values()
    for service in (each for each in objects if each["kind"] == "Service"):
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports_of[component])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_broker_whose_disk_was_full_is_started_again(rendered: Rendering, overlay):
    """A probe that sees it would end it while the disk is full; what ends it later must reach its process."""
    spec, config = pod_of(rendered(overlay), "StatefulSet", "sluice-nats"), nats_config(rendered(overlay))
    broker, beside = spec["containers"]
    assert broker["livenessProbe"]["httpGet"]["path"] == "/healthz?js-server-only=true"
    *_, monitor, data, pid_file = beside["args"]
    assert spec["shareProcessNamespace"] is True
    assert f'http: "0.0.0.0:{monitor.removeprefix("127.0.0.1:")}"\n' in config
    assert f'store_dir: "{data}"\n' in config
    assert f'pid_file: "{pid_file}"\n' in config
    of_broker = {mount["mountPath"]: mount["name"] for mount in broker["volumeMounts"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in beside["volumeMounts"]}
    assert mounts == {path: of_broker[path] for path in (data, pid_file.rpartition("/")[0])}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_store_fits_the_volume_and_history_the_store(rendered: Rendering, overlay):
    """What is worked out in one place is written in several."""
    objects = rendered(overlay)
    broker = named(objects, "StatefulSet", "sluice-nats")
    (claim,) = broker["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == f"{VOLUME_BYTES // 1024**3}Gi"
    assert f"max_file_store: {STORE_BYTES_MAX // 1024**3}GB\n" in nats_config(objects)
    assert HISTORY_BYTES_MAX < STORE_BYTES_MAX < VOLUME_BYTES
    told = [environment(container).get("SLUICE_HISTORY_MIB") for _, _, container in every_container(objects)]
    assert set(told) == {None}, "every service takes the size that fits this volume"


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("pod_ip", ["10.1.2.3", "fd00:10:244::1:5"])
def test_who_is_asked_at_his_pods_address_listens_there_in_a_cluster_of_either_family(
    rendered: Rendering, monkeypatch: pytest.MonkeyPatch, overlay, pod_ip
):
    """An IPv6 address without brackets is another one: no agent would be pulled, and no allocator asked."""
    monkeypatch.setitem(reading.VALUES, "status.podIP", pod_ip)
    asked = {
        host_and_port(address)
        for _, _, container in every_container(rendered(overlay))
        for variable, address in environment(container).items()
        if variable.endswith("_GRPC_ADDRESS") and host_and_port(address)[0] != "0.0.0.0"
    }
    assert asked == {(pod_ip, port) for port in (9410, 9411, 9412)}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_who_speaks_to_whom_is_let_through(rendered: Rendering, overlay):
    """Ingress at a port that is not served, or only one of both directions, cuts a service or `sluice usage` off."""
    objects = rendered(overlay)
    served = defaultdict(set)
    for owner, _, container in every_container(objects):
        ports = {port["containerPort"] for port in container.get("ports", ())}
        served[owner["metadata"]["labels"]["app.kubernetes.io/component"]] |= ports
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    components = set(served) | {"console"}

    def chosen(selector: Document) -> set[str]:
        labels = set(selector.get("matchLabels", {}).values())
        for expression in selector.get("matchExpressions", ()):
            labels |= set(expression["values"])
        return labels & components if selector else components

    def pairs(direction: str, peer_key: str) -> set[tuple[str, str, int]]:
        found = set()
        for policy in policies:
            for rule in policy["spec"].get(direction, ()):
                for peer in rule.get(peer_key, ()):
                    for here in chosen(policy["spec"]["podSelector"]):
                        for there in chosen(peer.get("podSelector", {"matchLabels": {"": ""}})):
                            source, sink = (there, here) if direction == "ingress" else (here, there)
                            found |= {(source, sink, port["port"]) for port in rule["ports"] if port["port"] != 53}
        return found

    into, out = pairs("ingress", "from"), pairs("egress", "to")
    assert all(port in served[sink] for _, sink, port in into)
    assert {(asks, "node-agent", 9411) for asks in ("console", "web")} <= into <= out
    into, out = ({pair for pair in each if pair[0] != "console"} for each in (into, out))
    assert into == out
    services = ("allocator", "inventory", "pod-watcher", "streams", "node-agent", "web", "callout", "nats")
    of_agents = {("inventory", "node-agent"), ("web", "node-agent")}
    assert {(source, sink) for source, sink, _ in into} == {(speaker, "nats") for speaker in services} | of_agents


def test_who_serves_metrics_is_scraped(rendered: Rendering):
    """What is counted there would be on no picture, and no alert could be about it."""
    objects, key = rendered("single", ["metrics"]), "app.kubernetes.io/component"
    serving = {
        owner["metadata"]["labels"][key]
        for owner, _, container in every_container(objects)
        if "metrics" in {port["name"] for port in container.get("ports", ())}
    }
    assert serving

    def chosen(kind: str, name: str, selector: str) -> set[str]:
        found = [
            each["spec"][selector] for each in objects if each["kind"] == kind and name in each["metadata"]["name"]
        ]
        labels = [each.get("matchLabels", {}).get(key) for each in found]
        values = [value for each in found for one in each.get("matchExpressions", ()) for value in one["values"]]
        return {each for each in (*labels, *values) if each}

    assert chosen("PodMonitor", "sluice", "selector") == serving
    assert chosen("NetworkPolicy", "sluice-metrics", "podSelector") == serving


def test_a_simulated_agent_has_a_fleet_and_no_hardware(rendered: Rendering):
    """On a cluster without GPUs anything of NVIDIA's keeps the agent from starting."""
    agent = pod_of(rendered("simulated"), "DaemonSet", "sluice-node-agent")
    (container,) = [each for each in agent["containers"] if each["name"] == "node-agent"]
    seen = environment(container)
    assert "runtimeClassName" not in agent
    assert not [name for name in seen if name.startswith("NVIDIA_")]
    assert "SLUICE_NODE_AGENT_MPS_CONTROL" not in seen
    assert seen["SLUICE_NODE_AGENT_FLEET_FILE"] == "/fleet/fleet.toml"
    assert "sluice.dev/agent" not in agent["nodeSelector"]


def test_the_names_on_pods_are_the_codes_own(rendered: Rendering):
    objects = rendered("single")
    assert named(objects, "CSIDriver", names.CSI_DRIVER)["spec"]["podInfoOnMount"] is True
    crd = named(objects, "CustomResourceDefinition", names.CRD_GPUS)["spec"]
    assert (crd["group"], crd["names"]["plural"]) == (names.CRD_GROUP, names.CRD_PLURAL)
    side_door = str(named(objects, "ValidatingAdmissionPolicy", "sluice-no-side-door"))
    for name in (names.GATE, names.CSI_DRIVER, names.TICKET_SUB_PATH, names.GRANTED_DOMAIN, names.ENV_VISIBLE_DEVICES):
        assert name in side_door
    keep = str(named(objects, "ValidatingAdmissionPolicy", "sluice-keep"))
    for name in (names.GATE, names.LABEL_MANAGED, f"{names.DOMAIN}/"):
        assert name in keep
    ignored = [each["metadata"]["labels"] for each in objects if each["kind"] == "Namespace"]
    assert all(names.LABEL_IGNORE in labels for labels in ignored)
    for variable, _ in names.ENV_SHARES:
        assert variable.startswith("CUDA_MPS_")


@pytest.mark.parametrize("components", [(), COMPONENTS])
def test_every_namespace_is_looked_at_by_one_webhook(rendered: Rendering, components):
    """Each default mode has its own path; a mode that does not exist would be a way around admission."""
    webhooks = named(rendered("single", components), "MutatingWebhookConfiguration", "sluice")["webhooks"]
    paths = {}
    for webhook in webhooks:
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["reinvocationPolicy"] == "IfNeeded"
        assert {condition["name"] for condition in webhook["matchConditions"]} >= {"asks-for-gpus"}
        assert [rule["resources"] for rule in webhook["rules"]] == [["pods"], ["pods/ephemeralcontainers"]]
        expressions = {each["key"]: each for each in webhook["namespaceSelector"]["matchExpressions"]}
        assert expressions[names.LABEL_IGNORE]["operator"] == "DoesNotExist"
        assert {"sluice-system", "sluice-nodes"} <= set(expressions["kubernetes.io/metadata.name"]["values"])
        chosen = [expressions[label] for label in (names.LABEL_DEFAULT_MODE, names.LABEL_HAND_OVER)]
        paths[webhook["clientConfig"]["service"]["path"]] = tuple(
            (each["operator"], *each["values"]) for each in chosen
        )
        wanted = {names.LABEL_ENABLED: "true"} if components else None
        assert webhook["namespaceSelector"].get("matchLabels") == wanted
    modes = {"": ("NotIn", *names.DEFAULT_MODES)} | {f"/{mode}": ("In", mode) for mode in names.DEFAULT_MODES}
    ways = {"": ("NotIn", *names.HAND_OVERS)} | {f"/{way}": ("In", way) for way in names.HAND_OVERS}
    assert paths == {f"/mutate{mode}{way}": (modes[mode], ways[way]) for mode in modes for way in ways}
    assert len(webhooks) == len(paths) == len({each["name"] for each in webhooks})
