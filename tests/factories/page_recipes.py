"""The manifests of docs/recipes.md as they stand there, and the controllers that make pods of them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sluice.contracts.manifests.pod_templates import pod_templates

Json = dict[str, Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
NOTEBOOK_UID = 1000
"""KubeSpawner's `uid` in the chart of Zero to JupyterHub (its values.yaml, `singleuser.uid`)."""
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Recipe(NamedTuple):
    """One section of the page."""

    documents: tuple[Json, ...]
    """Of its YAML, in order."""
    commands: tuple[tuple[str, ...], ...]
    """The command lines of its other blocks, split."""

    def of(self, kind: str) -> Json:
        (found,) = (each for each in self.documents if each.get("kind") == kind)
        return found


def recipes() -> dict[str, Recipe]:
    """Every section of the page that has a manifest, by its heading."""
    _, *parts = _SECTION.split(PAGE.read_text(encoding="utf-8"))
    found = {}
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        blocks = _BLOCK.findall(text)
        documents = [each for language, block in blocks if language == "yaml" for each in yaml.safe_load_all(block)]
        lines = [line for language, block in blocks if not language for line in block.splitlines()]
        found[title] = Recipe(tuple(documents), tuple(tuple(line.split()) for line in lines))
    return found


def pods_of(document: Json) -> list[Json]:
    """The pods that a controller makes of one object at first, in order; they are numbered from 0."""
    if document["kind"] == "Pod":
        return [document]
    made = []
    for template in pod_templates(document):
        named = "-".join(filter(None, (document["metadata"]["name"], template.role)))
        made += [_pod(f"{named}-{at}", template.metadata, template.spec) for at in range(template.count)]
    return made


def steps_of(workflow: Json) -> Iterator[Json]:
    """The pods of an Argo Workflow's steps, in order: `wait` beside `main`, which is named as the default."""
    templates = {each["name"]: each for each in workflow["spec"]["templates"]}
    for (step,) in templates[workflow["spec"]["entrypoint"]]["steps"]:
        template = templates[step["template"]]
        own = template.get("metadata", {}).get("annotations", {})
        annotations = {"kubectl.kubernetes.io/default-container": "main"} | own
        containers = [{"name": "wait", "image": "argoexec:latest"}, {"name": "main"} | template["container"]]
        name = f"{workflow['metadata']['generateName']}{step['name']}"
        yield _pod(name, {"annotations": annotations}, {"restartPolicy": "Never", "containers": containers})


def notebook_of(values: Json, profile: int, user: str) -> Json:
    """The pod of one user's notebook, as KubeSpawner makes it of a profile in the chart's values."""
    override = values["singleuser"]["profileList"][profile].get("kubespawner_override", {})
    container = {"name": "notebook", "image": "jupyter/base-notebook:latest"}
    container |= {"securityContext": {"runAsUser": NOTEBOOK_UID}}
    metadata = {"annotations": override.get("extra_annotations", {})}
    return _pod(f"jupyter-{user}", metadata, {"restartPolicy": "OnFailure", "containers": [container]})


def _pod(name: str, metadata: Any, spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "name": name}, "spec": dict(spec)}
