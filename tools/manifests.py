"""
Writes deploy/kubernetes from the Helm chart, for `kubectl apply -k` and GitOps; `--check` fails where it differs.

    .venv/bin/python tools/manifests.py [--check]

The base is the chart with its own values. An overlay or a component is what other values change: objects that come,
patches of those that differ, deletions of those that go. Patches are strategic merges where lists have keys, so that
components go together, else JSON patches. Without Helm nothing is compared, and the output says so.
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from chart import ROOT, ChartError, Document, NoHelmError, documents, helm, template

KUBERNETES = ROOT / "deploy/kubernetes"
HEAD = "# Generated from deploy/helm/sluice by `make manifests`; do not edit.\n"
BASE: Mapping[str, Any] = {"namespaces": {"createRelease": True}, "deviceClasses": {"sluice": False}}
"""Without Helm the namespaces are made too, and a server before 1.34 is served."""
OVERLAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "single": ("One of each.", {}),
    "ha": ("Any one may die: three brokers, two of allocator, pod-watcher and webhook.", {"replicas": "ha"}),
    "simulated": ("Any cluster (kind, minikube), without a GPU.", {"simulated": {"enabled": True}}),
}
COMPONENTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "autoscaling": ("Asks a node autoscaler for nodes that waiting pods lack.", {"autoscaling": {"nodesAskedMax": 10}}),
    "cert-manager": ("The webhook's certificate by cert-manager.", {"webhook": {"certificate": "cert-manager"}}),
    "dashboard": ("A Grafana dashboard.", {"dashboard": True}),
    "jaeger": ("A trace viewer in memory, and traces sent there.", {"tracing": {"jaeger": True}}),
    "metrics": ("Metrics and alerts for a Prometheus operator.", {"metrics": {"enabled": True}}),
    "no-time-quota": ("No time quota; SMs are summed up.", {"quotas": {"enforceTime": False}}),
    "nvidia-classes": ("NVIDIA's DeviceClasses (Kubernetes 1.34).", {"deviceClasses": {"nvidia": True}}),
    "opt-in": ("Only namespaces labelled sluice.dev/enabled=true are served.", {"onlyEnabledNamespaces": True}),
    "record-claim": ("Use over time outlives the inventory's pod.", {"inventory": {"record": {"volume": "claim"}}}),
    "resource-claims": ("The DeviceClass sluice.dev (Kubernetes 1.34).", {"deviceClasses": {"sluice": True}}),
    "strict-host-paths": ("No pod may mount a host directory above Sluice's.", {"strictHostPaths": True}),
}
KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "webhooks": "name",
}
"""Lists that a strategic merge joins by a key; other lists it replaces."""
MERGED = {"ConfigMap", "DaemonSet", "Deployment", "MutatingWebhookConfiguration", "StatefulSet"}
"""Kinds whose lists, where we change them, have such keys in kustomize's schemas."""
_SOURCE = re.compile(r"^# Source: sluice/templates/(\S+)$", re.MULTILINE)
Key = tuple[str, str, str]


def merged(*values: Mapping[str, Any]) -> dict[str, Any]:
    """Values over values, as Helm merges files."""
    result: dict[str, Any] = {}
    for each in values:
        for key, value in each.items():
            old = result.get(key)
            result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def key_of(document: Document) -> Key:
    """What makes an object one."""
    about = document["metadata"]
    return document["kind"], about.get("namespace", ""), about["name"]


def rendered(values: Mapping[str, Any]) -> str:
    """The chart with values over those of the base. Raises NoHelmError, ChartError."""
    return template(merged(BASE, values), options=("--no-hooks",))


def files() -> dict[Path, str]:
    """Every generated file and its text. Raises NoHelmError, ChartError."""
    base = rendered({})
    made = dict(_base_files(base))
    plain = {key_of(each): each for each in documents(base)}
    for folder, variants, kind in (("overlays", OVERLAYS, "Kustomization"), ("components", COMPONENTS, "Component")):
        for name, (purpose, values) in variants.items():
            other = {key_of(each): each for each in documents(rendered(values))}
            where = KUBERNETES / folder / name
            added = [each for key, each in other.items() if key not in plain]
            about = {"apiVersion": f"kustomize.config.k8s.io/v1{'beta1' if folder == 'overlays' else 'alpha1'}"}
            kustomization: Document = {
                **about,
                "kind": kind,
                "resources": [*(["../../base"] if folder == "overlays" else []), *(["added.yaml"] if added else [])],
                "patches": list(patches(plain, other)),
            }
            shown = {key: value for key, value in kustomization.items() if value}
            made[where / "kustomization.yaml"] = f"{HEAD}# {purpose}\n{written(shown)}"
            if added:
                made[where / "added.yaml"] = HEAD + "---\n".join(map(written, added))
    return made


def _base_files(text: str) -> Iterator[tuple[Path, str]]:
    """One for each template, and what names them."""
    parts: dict[str, list[Document]] = {}
    _, *pieces = _SOURCE.split(text)
    for name, piece in zip(pieces[::2], pieces[1::2], strict=True):
        parts.setdefault(name, []).extend(documents(piece.rstrip().removesuffix("---")))
    parts = {name: found for name, found in parts.items() if found}
    for name, found in parts.items():
        yield KUBERNETES / "base" / name, HEAD + "---\n".join(map(written, found))
    named = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["namespaces.yaml", *sorted({*parts} - {"namespaces.yaml"})],
    }
    yield KUBERNETES / "base/kustomization.yaml", f"{HEAD}# Everything, once each. Apply an overlay.\n{written(named)}"


def patches(old: Mapping[Key, Document], new: Mapping[Key, Document]) -> Iterator[Document]:
    """What makes the old objects the new ones; objects that only come are no patches."""
    for key, before in old.items():
        kind, namespace, name = key
        target = {"kind": kind, "name": name, **({"namespace": namespace} if namespace else {})}
        about = {"apiVersion": before["apiVersion"], "kind": kind, "metadata": {"name": name}}
        if key not in new:
            yield {"target": target, "patch": written({"$patch": "delete", **about})}
        elif before != new[key]:
            if kind in MERGED:
                change = _merge(before, new[key])
                about["metadata"].update(change.pop("metadata", {}))
                yield {"target": target, "patch": written({**about, **change})}
            else:
                yield {"target": target, "patch": written(list(_steps(before, new[key], "")))}


def _merge(old: Document, new: Document) -> Document:
    """The strategic merge patch of a map."""
    change: Document = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            change[key] = _merge(before, value)
        elif key in KEYS and isinstance(before, list) and isinstance(value, list):
            change[key] = list(_merge_list(before, value, KEYS[key]))
        else:
            change[key] = value
    return change


def _merge_list(old: list[Document], new: list[Document], key: str) -> Iterator[Document]:
    before = {each[key]: each for each in old}
    after = {each[key] for each in new}
    yield from ({key: name, "$patch": "delete"} for name in before if name not in after)
    for each in new:
        was = before.get(each[key])
        if was != each:
            yield each if was is None else {key: each[key], **_merge(was, each)}


def _steps(old: Any, new: Any, path: str) -> Iterator[Document]:
    """The JSON patch (RFC 6902) of a value."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            below = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in new:
                yield {"op": "remove", "path": below}
            elif key not in old:
                yield {"op": "add", "path": below, "value": new[key]}
            else:
                yield from _steps(old[key], new[key], below)
    elif isinstance(old, list) and isinstance(new, list) and len(new) >= len(old):
        for number, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from _steps(before, after, f"{path}/{number}")
        yield from ({"op": "add", "path": f"{path}/-", "value": each} for each in new[len(old) :])
    else:
        yield {"op": "replace", "path": path, "value": new}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as such, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def written(value: Any) -> str:
    """As YAML, the same for the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def comparable(value: Any) -> Any:
    """A value without the order of keys and of lists that have one."""
    if isinstance(value, dict):
        result = {key: comparable(each) for key, each in value.items()}
        for key, name in KEYS.items():
            if isinstance(result.get(key), list) and all(name in each for each in result[key]):
                result[key] = sorted(result[key], key=lambda each, name=name: str(each[name]))
        return result
    return [comparable(each) for each in value] if isinstance(value, list) else value


def generated() -> set[Path]:
    """The files that are there below the generated folders."""
    return {path for name in ("base", "overlays", "components") for path in (KUBERNETES / name).rglob("*.*")}


def main() -> int:
    """Write, or only compare. 1 where a file differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    try:
        helm(build=True)
        wanted = files()
    except NoHelmError as error:
        print(f"deploy/kubernetes was not compared with the chart: {error}")
        return 0 if check else 1
    except ChartError as error:
        print(f"deploy/helm/sluice: {error}", file=sys.stderr)
        return 1
    there = generated()
    if check:
        wrong = [path for path in there | set(wanted) if path not in there or path.read_text() != wanted.get(path)]
        for path in sorted(wrong):
            print(f"{path.relative_to(ROOT)}: is not what the chart gives; run `make manifests`", file=sys.stderr)
        return int(bool(wrong))
    for name in ("base", "overlays", "components"):
        shutil.rmtree(KUBERNETES / name)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(json.dumps({"written": len(wanted)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
