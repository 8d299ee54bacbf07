"""The chart installs what deploy/kubernetes applies, in any namespace, and refuses what cannot work."""

import datetime as dt
import itertools
import json
import subprocess
from pathlib import Path

import chart
import deploy_check
import manifests
import pytest
import release
import yaml
from unit.deploy.reading import Rendering, environment, every_container, named, pod_of

try:
    chart.helm()
    WHY = ""
except chart.NoHelmError as error:
    WHY = str(error)

needs_helm = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.slow]
NAMES = tuple(manifests.COMPONENTS)
OURS = "app.kubernetes.io"
AGENT = "SLUICE_NODE_AGENT"
COMBINED = [
    *((overlay, (name,)) for overlay, name in itertools.product(manifests.OVERLAYS, NAMES)),
    *((overlay, deploy_check.COMPONENTS) for overlay in manifests.OVERLAYS),
]


class TestWithHelm:
    """What needs Helm."""

    pytestmark = needs_helm

    @pytest.mark.parametrize(("overlay", "components"), COMBINED)
    def test_kustomize_and_helm_install_the_same(self, rendered: Rendering, overlay, components):
        """A patch that lands elsewhere, or two that undo each other, leave GitOps with another Sluice."""
        chosen = [manifests.OVERLAYS[overlay][1], *(manifests.COMPONENTS[name][1] for name in components)]
        made = chart.documents(manifests.rendered(manifests.merged(*chosen)))
        wanted = {manifests.key_of(each): each for each in made}
        found = {manifests.key_of(each): each for each in rendered(overlay, components)}
        assert set(found) == set(wanted)
        for key, each in wanted.items():
            assert manifests.comparable(found[key]) == manifests.comparable(each), key

    def test_no_namespace_is_written_in(self):
        """Sluice beside another, or under a site's own names, would look for objects that are not there."""
        values = {"namespaces": {"nodes": "gpu-agents"}, "replicas": "ha", "metrics": {"enabled": True}}
        text = chart.template(manifests.merged(values, {"tracing": {"jaeger": True}}), namespace="gpus")
        assert "sluice-system" not in text
        assert "sluice-nodes" not in text.replace("  name: sluice-nodes\n", "")  # a PodMonitor's own name

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"replicas": "three"}, "at '/replicas': value must be one of 'single', 'ha'"),
            ({"replica": "ha"}, "additional properties 'replica' not allowed"),
            ({"images": {"nats": {"name": "nats", "digest": "abc"}}}, "at '/images/nats/digest': 'abc' does not match"),
            ({"nats": {"storage": {"size": "5Gi"}}}, "at '/nats/storage/size': '5Gi' does not match"),
            ({"inventory": {"record": {"volume": "disk"}}}, "value must be one of 'emptyDir', 'claim', 'none'"),
            ({"uninstall": {"waitSeconds": 0}}, "at '/uninstall/waitSeconds': minimum: got 0, want 1"),
            ({"tracing": {"viewer": "https://jaeger.example"}}, "at '/tracing/viewer': 'https://jaeger.example'"),
            ({"tracing": {"viewer": "https://jaeger.example/trace/{trace_id}"}}, ""),
            ({"allocator": {"resources": {"limits": {}}}}, ""),
            (
                {"nodeAgent": {"env": {f"{AGENT}_MPS_CONTROL": False}}},
                f"at '/nodeAgent/env/{AGENT}_MPS_CONTROL': got bool",
            ),
            ({"nodeAgent": {"maxUnavailable": 0}}, "at '/nodeAgent/maxUnavailable': minimum: got 0, want 1"),
            ({"nodeAgent": {"maxUnavailable": "10%"}}, ""),
            ({"simulated": None}, "missing property 'simulated'"),
            ({"nodeAgent": {"nodeSelector": None}}, ""),
            ({"labels": {f"{OURS}/part-of": "platform"}}, f"labels has {OURS}/part-of, by which pods of each part are"),
            ({"autoscaling": {"nodesAskedMax": -1}}, "at '/autoscaling/nodesAskedMax': minimum: got -1, want 0"),
            ({"networkPolicies": {"apiServerPorts": []}}, "at '/networkPolicies/apiServerPorts': minItems: got 0"),
            ({"nodeAgent": {"tolerations": [{"value": True}]}}, "at '/nodeAgent/tolerations/0/value': got boolean"),
            ({"namespaces": {"nodes": "sluice-system"}}, 'namespaces.nodes is "sluice-system", the release\'s own'),
            ({"nats": {"externalUrl": "tls://a:1"}}, "nats.externalCa is empty: it must be the authority (PEM) of"),
            ({"tracing": {"jaeger": True, "endpoint": "http://a:1"}}, 'tracing.endpoint is "http://a:1" and'),
        ],
    )
    def test_a_value_that_cannot_work_is_named(self, values, said):
        if not said:
            chart.template(values)
            return
        with pytest.raises(chart.ChartError) as caught:
            chart.template(values)
        assert said in str(caught.value)

    def test_an_image_comes_from_where_it_is_said(self):
        """Without a mirror for one image an air-gapped cluster does not start."""
        digest = f"sha256:{'0' * 64}"
        console, nats = {"name": "sluice-console", "digest": digest}, {"name": "nats", "tag": "2", "registry": "other"}
        images = {"registry": "mirror.example/gpu", "tag": "9", "nats": nats, "console": console}
        found = chart.documents(chart.template({"images": images}))
        used = {each["image"] for _, spec in deploy_check.pod_specs(found) for each in deploy_check.containers(spec)}
        services = [f"{name}:9" for name in ("allocator", "inventory", "node-agent", "pod-watcher")]
        ours = {f"mirror.example/gpu/sluice-{name}" for name in (*services, f"console@{digest}")}
        assert used == ours | {"other/nats:2"}

    def test_an_image_of_another_name_has_the_tag_of_ours(self):
        """A mirror with folders would be asked for a version that was not chosen."""
        allocator = {"name": "team/sluice-allocator"}
        found = chart.documents(chart.template({"images": {"tag": "9", "allocator": allocator}}))
        assert pod_of(found, "Deployment", "sluice-allocator")["containers"][0]["image"] == "team/sluice-allocator:9"

    def test_a_number_is_the_text_that_kubernetes_wants(self):
        """`--set labels.team=5` is a number; an API server refuses it as a label, and a service 1.048576e+06."""
        some = {"number": 1048576, "truth": True}
        agent = {"nodeSelector": some, "env": {"SLUICE_OFF": False}}
        values = {"labels": some, "podAnnotations": some, "services": {"nodeSelector": some}, "nodeAgent": agent}
        more = {"env": {"SLUICE_MIB": 1048576, "SLUICE_OFF": True}, "test": {"annotations": some}}
        objects = chart.documents(chart.template(manifests.merged(values, more)))
        assert [problem for each in objects for problem in deploy_check.problems_of_schema(each, "")] == []
        _, container = pod_of(objects, "DaemonSet", "sluice-node-agent")["containers"]
        seen = environment(container)
        assert (seen["SLUICE_MIB"], seen["SLUICE_OFF"]) == ("1048576", "false")

    def test_a_setting_of_an_operator_stands_once(self):
        """Beside ours a server-side apply refuses it, and an upgrade of Helm loses it."""
        own = {"SLUICE_LOG_FORMAT": "text", "SLUICE_NEW": "1"}
        agent = {"env": {f"{AGENT}_MPS_CONTROL": "off"}}
        objects = chart.documents(chart.template({"env": own, "nodeAgent": agent}))
        changed = set()
        for owner, _, container in every_container(objects):
            names = [each["name"] for each in container.get("env", ())]
            assert len(names) == len(set(names))
            if own.items() <= environment(container).items():
                changed.add(owner["metadata"]["name"])
        assert len(changed) == 7
        _, container = pod_of(objects, "DaemonSet", "sluice-node-agent")["containers"]
        assert environment(container)[f"{AGENT}_MPS_CONTROL"] == "off"

    @pytest.mark.parametrize(
        ("policy", "values", "port"),
        [
            ("bus", {"nats": {"externalUrl": "tls://nats.example", "externalCa": "a"}}, 4222),
            ("bus", {"nats": {"externalUrl": "tls://[fd00:10::1]:4333", "externalCa": "a"}}, 4333),
            ("traces", {"tracing": {"endpoint": "http://[fd00:10::1]:4318/"}}, 4318),
            ("traces", {"tracing": {"endpoint": "http://traces.example/otlp"}}, 80),
            ("traces", {"tracing": {"endpoint": "https://traces.example:4318"}}, 4318),
            ("traces", {"tracing": {"endpoint": "https://traces.example"}}, 443),
        ],
    )
    def test_the_port_of_a_url_is_let_through(self, policy, values, port):
        """Another one leaves every service without its broker, or traces nowhere."""
        found = chart.documents(chart.template(values))
        policies = [each for each in found if each["kind"] == "NetworkPolicy"]
        rules = [each["spec"]["egress"] for each in policies if each["metadata"]["name"] == f"sluice-{policy}"]
        assert rules
        assert all(each == [{"ports": [{"port": port}]}] for each in rules)

    def test_the_trace_viewer_is_pulled_and_placed_as_services_are(self):
        """Its image is in the same registry, and nodes that only services tolerate may be the only ones."""
        services = {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}
        values = {"tracing": {"jaeger": True}, "images": {"pullSecrets": ["key"]}, "services": services}
        objects = chart.documents(chart.template(values))
        for name in ("sluice-jaeger", "sluice-web"):
            spec = pod_of(objects, "Deployment", name)
            assert spec["imagePullSecrets"] == [{"name": "key"}]
            assert {key: spec[key] for key in services} == services

    def test_a_priority_class_that_is_named_is_there(self):
        """No pod that names another is created."""
        objects = chart.documents(
            chart.template({"services": {"priorityClass": "sluice-node"}, "nodeAgent": {"priorityClass": ""}})
        )
        assert [each["metadata"]["name"] for each in objects if each["kind"] == "PriorityClass"] == ["sluice-node"]

    @pytest.mark.parametrize(
        ("visible", "devices", "succeeds"),
        [
            ("MIG-7896fb44-b977-4761-9379-653f190fe21c", [], True),
            ("void", ["/dev/nvidia0"], True),
            ("void", [], False),
            ("all", ["/dev/nvidia0"], False),
            ("", [], False),
        ],
    )
    def test_the_test_of_helm_sees_a_device_however_it_came(self, monkeypatch, visible, devices, succeeds):
        """By ResourceClaim the variable is void: the test of a good installation would fail."""
        (container,) = named(chart.documents(chart.template({})), "Pod", "sluice-test")["spec"]["containers"]
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr("glob.glob", lambda pattern: devices)
        with pytest.raises(SystemExit) as ended:
            exec(container["args"][0])
        assert (ended.value.code == 0) is succeeds

    def test_a_packaged_chart_knows_its_registry(self, tmp_path: Path):
        """Its user would look for our images at Docker Hub."""
        release.package(tmp_path, "registry.example/gpu")
        (package,) = tmp_path.iterdir()
        text = chart.run("template", "sluice", str(package), f"--kube-version={chart.NEWEST}")
        found = deploy_check.pod_specs(chart.documents(text))
        used = {each["image"].rpartition(":")[0] for _, spec in found for each in deploy_check.containers(spec)}
        assert {"registry.example/gpu/sluice-allocator", "nats"} <= used


def test_the_schema_takes_the_charts_own_values():
    """A value without a place in it could never be set."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}


LOG = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.1.0\n\n- Old.\n"


def test_a_release_takes_what_is_new():
    """Its notes would be those of another, or a second run close an empty section."""
    once = release.closed(LOG, "0.2.0", dt.date(2026, 11, 29))
    assert release.notes(LOG, "0.2.0") == release.notes(once, "0.2.0") == "- New.\n"
    assert "## Unreleased\n\n## 0.2.0 - 2026-11-29\n\n- New." in once
    assert release.closed(once, "0.2.0", dt.date(2026, 11, 30)) == once


@pytest.mark.parametrize(
    ("version", "registry", "changelog", "said"),
    [
        ("1.2", "r.example", LOG, "VERSION is '1.2': give three numbers"),
        ("0.1.0", "r.example", LOG, "VERSION is 0.1.0, below 0.2.0"),
        ("0.3.0", "https://r.example", LOG, "REGISTRY is 'https://r.example': give HOST/PATH"),
        ("0.3.0", "", LOG, "REGISTRY is ''"),
        ("0.3.0", "r.example", "# Changelog\n\n## Unreleased\n", "CHANGELOG.md: neither"),
    ],
)
def test_a_release_that_cannot_be_made_changes_nothing(version, registry, changelog, said):
    with pytest.raises(release.ReleaseError) as caught:
        release.checked(version, registry, "0.2.0", changelog)
    assert said in str(caught.value)


def test_sums_are_read_by_the_usual_program(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    release.sums(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, timeout=20)
