"""
Checks deploy/ without a cluster: style of the YAML, strict schemas of Kubernetes, and where images come from.

    python tools/deploy_check.py

Overlays and components are rendered by `kubectl kustomize`, which needs no server; without kubectl only
the files themselves are checked, and the output says so. It cannot know what an API server would answer.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import chart
import kubernetes_validate
import manifests
import yaml
from chart import Document, documents
from yamllint import linter
from yamllint.config import YamlLintConfig

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
GENERATED = tuple(KUBERNETES / name for name in ("base", "overlays", "components"))
"""By tools/manifests.py, which compares them with the chart."""
OVERLAYS = tuple(manifests.OVERLAYS)
ALONE = ("cert-manager",)
"""It takes away what the webhook does not need with it, and is looked at by itself."""
COMPONENTS = tuple(name for name in manifests.COMPONENTS if name not in ALONE)
VERSIONS = ("1.30.0", "1.37.0")
"""The first with ValidatingAdmissionPolicy and match conditions as v1, and the newest whose schemas are at hand."""
SINCE = {"resource.k8s.io/v1": VERSIONS[-1]}
"""In the components `nvidia-classes` and `resource-claims`, which need Kubernetes 1.34."""
OF_KUSTOMIZE = "kustomize.config.k8s.io"
FOREIGN: dict[str, dict[str, frozenset[str]]] = {
    "cert-manager.io/v1": {
        "Issuer": frozenset({"selfSigned", "ca"}),
        "Certificate": frozenset(
            {
                "secretName",
                "commonName",
                "dnsNames",
                "isCA",
                "duration",
                "renewBefore",
                "privateKey",
                "usages",
                "issuerRef",
            }
        ),
    },
    "monitoring.coreos.com/v1": {
        "PodMonitor": frozenset({"selector", "podTargetLabels", "podMetricsEndpoints"}),
        "PrometheusRule": frozenset({"groups"}),
    },
}
"""
Kinds of others, whose schemas are not at hand: the fields of their `spec` that we use, as documented
(https://cert-manager.io/docs/reference/api-docs/, https://prometheus-operator.dev/docs/api-reference/api/).
Any other field is a problem until somebody has looked it up.
"""
RENDER_S = 60
_STYLE = """
extends: default
rules:
  braces: {max-spaces-inside: 0}
  comments: {min-spaces-from-content: 1}
  document-start: disable
  line-length: {max: 120}
  quoted-strings: {quote-type: any, required: false}
  truthy: {check-keys: false}
"""


class NoKubectlError(Exception):
    """There is no kubectl to render with."""


class RenderError(Exception):
    """`kubectl kustomize` refuses. Its words."""


def yaml_files() -> list[Path]:
    """Every YAML file below deploy/ that is written by hand and is no template."""
    return sorted(
        path
        for path in DEPLOY.rglob("*.yaml")
        if chart.CHART / "templates" not in path.parents and not any(each in path.parents for each in GENERATED)
    )


def render(overlay: str, components: Sequence[str] = ()) -> list[Document]:
    """What `kubectl apply -k` would send for an overlay with these components. Raises NoKubectlError, RenderError."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise NoKubectlError("there is no kubectl on PATH")
    with tempfile.TemporaryDirectory() as outside:
        # kustomize takes only relative paths, and only within the file system it runs on
        folder = KUBERNETES / "overlays" / overlay
        if components:
            copy = Path(outside) / "kubernetes"
            shutil.copytree(KUBERNETES, copy)
            folder = copy / "overlays" / "combined"
            folder.mkdir()
            combined = {
                "resources": [f"../{overlay}"],
                "components": [f"../../components/{name}" for name in components],
            }
            (folder / "kustomization.yaml").write_text(yaml.safe_dump(combined), encoding="utf-8")
        done = subprocess.run(
            [kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=RENDER_S, check=False
        )
    if done.returncode != 0:
        raise RenderError(f"overlay {overlay} with {', '.join(components) or 'no component'}: {done.stderr.strip()}")
    return documents(done.stdout)


def problems_of_style(path: Path) -> Iterator[str]:
    """What yamllint says of one file."""
    for problem in linter.run(path.read_text(encoding="utf-8"), YamlLintConfig(_STYLE)):
        yield f"{path.relative_to(ROOT)}:{problem.line}: {problem.desc}"


def problems_of_schema(document: Document, where: str) -> Iterator[str]:
    """What strict schemas say of one object of Kubernetes; unknown fields are problems."""
    if str(document.get("apiVersion", "")).startswith(OF_KUSTOMIZE):
        return
    what = f"{where}: {document.get('kind')} {document.get('metadata', {}).get('name')}"
    kinds = FOREIGN.get(str(document.get("apiVersion", "")))
    if kinds is not None:
        allowed = kinds.get(str(document.get("kind")))
        if allowed is None:
            yield f"{what}: not a kind that was looked up"
        else:
            for field in sorted({*document["spec"]} - allowed):
                yield f"{what}: spec.{field}: not a field that was looked up"
        return
    whole = repr(document)
    if whole not in _PROBLEMS:
        _PROBLEMS[whole] = tuple(_problems_of_object(document))
    yield from (f"{what}: {problem}" for problem in _PROBLEMS[whole])


_PROBLEMS: dict[str, tuple[str, ...]] = {}
"""Of objects that were looked at: overlays have most of theirs in common, and a schema would be read for each."""


def _problems_of_object(document: Document) -> Iterator[str]:
    for version in VERSIONS if document["apiVersion"] not in SINCE else [SINCE[document["apiVersion"]]]:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{'.'.join(str(part) for part in error.path)}: {error.message} (Kubernetes {error.version})"
        except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as error:
            yield str(error.message)


def pod_specs(rendered: Sequence[Document]) -> Iterator[tuple[Document, Document]]:
    """Each object that makes pods, with the spec of its pods."""
    for document in rendered:
        if document["kind"] in {"Deployment", "DaemonSet", "StatefulSet", "Job"}:
            yield document, document["spec"]["template"]["spec"]


def containers(spec: Document) -> list[Document]:
    """All containers of a pod's spec, those that run first included."""
    return [*spec.get("initContainers", ()), *spec["containers"]]


def problems_of_images(rendered: Sequence[Document], where: str) -> Iterator[str]:
    """Images that name a registry, which is each cluster's own affair, or whose version is left open."""
    for _, spec in pod_specs(rendered):
        for container in containers(spec):
            why = problem_of_image(container["image"])
            if why:
                yield f"{where}: container {container['name']}: image {container['image']!r} {why}"


def problem_of_image(image: str) -> str:
    """What is wrong with one image's name; empty when nothing is."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return f"names the registry {first}; say it in an overlay of your own (images:)"
    _, colon, tag = image.rpartition(":")
    return "" if colon and tag not in {"", "latest"} else "has no tag, so what runs is unknown"


def check() -> tuple[list[str], list[str]]:
    """What is wrong, and what could not be looked at. One sentence each."""
    problems: list[str] = []
    notes: list[str] = []
    seen: set[str] = set()
    for path in yaml_files():
        problems += problems_of_style(path)
    try:
        for where, rendered in every_rendering():
            problems += problems_of_images(rendered, where)
            problems += problems_of_new(rendered, where, seen)
    except NoKubectlError as error:
        notes.append(f"overlays were not rendered: {error}")
    except RenderError as error:
        problems.append(str(error))
    try:
        chart.run("lint", "--strict", str(chart.CHART), f"--kube-version={chart.NEWEST}")
        for where, rendered in every_installation():
            problems += problems_of_new(rendered, where, seen)
    except chart.NoHelmError as error:
        notes.append(f"the chart was not rendered: {error}")
    except chart.ChartError as error:
        problems.append(str(error))
    return problems, notes


def every_rendering() -> Iterator[tuple[str, list[Document]]]:
    """Each overlay by itself and with all components, with what it is called. Raises NoKubectlError, RenderError."""
    for overlay in OVERLAYS:
        yield f"overlay {overlay}", render(overlay)
        yield f"overlay {overlay} with all components", render(overlay, COMPONENTS)
    for component in ALONE:
        yield f"overlay {OVERLAYS[0]} with {component}", render(OVERLAYS[0], [component])


MATRIX: dict[str, Document] = {
    "with its own values": {},
    "simulated": {"simulated": {"enabled": True}},
    "ha, all on": {
        "replicas": "ha",
        "images": {"registry": "registry.example/gpu", "tag": "1.2.3", "pullPolicy": "Always", "pullSecrets": ["key"]},
        "metrics": {"enabled": True},
        "tracing": {"jaeger": True},
        "dashboard": True,
        "onlyEnabledNamespaces": True,
        "strictHostPaths": True,
        "deviceClasses": {"nvidia": True},
        "webhook": {"certificate": "cert-manager"},
        "nats": {"storage": {"class": "fast", "size": "20Gi"}},
        "quotas": {"enforceTime": False, "limits": "# none\n"},
    },
    "of others": {
        "images": {"nats": {"name": "mirror/nats", "digest": f"sha256:{'0' * 64}"}},
        "nats": {"externalUrl": "tls://nats.example:4333", "externalCa": "a certificate\n"},
        "tracing": {"endpoint": "http://traces.example:4318"},
        "handOver": "dra",
        "runtimeClass": "",
        "labels": {"team": "gpu"},
        "podAnnotations": {"example/a": "1"},
        "env": {"SLUICE_LOG_LEVEL": "debug"},
        "services": {"priorityClass": "", "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
        "nodeAgent": {"kubeletRoot": "/data/kubelet", "priorityClass": "high", "maxUnavailable": "10%"},
        "networkPolicies": {"enabled": False},
        "namespaces": {"nodes": "gpu-nodes", "createNodes": False},
        "uninstall": {"hook": False},
        "exemptNamespaces": ["monitoring"],
    },
}
"""What is tried of the chart's values: each at least once away from its default."""


def every_installation() -> Iterator[tuple[str, list[Document]]]:
    """The chart with each values of the matrix, on each version. Raises NoHelmError, ChartError."""
    for name, values in MATRIX.items():
        for version in VERSIONS:
            yield f"chart {name}", documents(chart.template(values, namespace="gpus", version=version))


def problems_of_new(rendered: Sequence[Document], where: str, seen: set[str]) -> Iterator[str]:
    """What the schemas say of objects that were not `seen` yet: most are the same in every overlay."""
    for document in rendered:
        text = json.dumps(document, sort_keys=True, default=str)
        if text not in seen:
            seen.add(text)
            yield from problems_of_schema(document, where)


def main() -> int:
    """Say what is wrong. Returns the exit code."""
    problems, notes = check()
    for line in (*problems, *notes):
        print(line)
    if not problems:
        print("deploy/: nothing wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
