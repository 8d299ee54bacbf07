"""Manifests as people write them: every pod is found, and no text stops or delays the reader."""

import pytest

from sluice.contracts.manifests import ManifestLimits, PodManifest, read_manifests
from sluice.contracts.reasons import Refusal, RefusalReason
from sluice.contracts.request_syntax import RequestLimits

POD = """
kind: Pod
metadata: {{ name: {name}, annotations: {{ sluice.dev/profile: 1g.5gb }} }}
spec: {{ nodeSelector: {{ zone: a }}, containers: [{{ name: main }}] }}
"""


def read(text: str, **limits: int) -> tuple[PodManifest, ...] | Refusal:
    """Read a text with the ordinary limits, or smaller ones."""
    return read_manifests("f.yaml", text, limits=ManifestLimits(**limits), asks=RequestLimits())


def pods(text: str) -> tuple[PodManifest, ...]:
    found = read(text)
    assert not isinstance(found, Refusal), found
    return found


def test_every_document_and_every_item_of_a_list_is_a_pod():
    listed = "kind: List\nitems:\n" + "".join(
        f"- {{kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c}}]}}}}\n" for name in "cd"
    )
    text = "---".join([POD.format(name="a"), POD.format(name="b"), "\n" + listed])
    assert [pod.name for pod in pods(text)] == ["a", "b", "c", "d"]


def test_one_wrong_document_refuses_only_itself():
    wrong = "{kind: pod, metadata: {name: x}}"
    found = pods(f"{wrong}\n---\n{POD.format(name='a')}")
    assert [pod.refusal.reason if pod.refusal else None for pod in found] == [RefusalReason.NOT_A_POD, None]


@pytest.mark.parametrize(
    ("text", "limits", "reason"),
    [
        ("a: [", {}, RefusalReason.NOT_YAML),
        ("a: b", {"file_bytes_max": 3}, RefusalReason.TOO_LARGE),
        ("---\na: b\n" * 5, {"documents_max": 4}, RefusalReason.TOO_LARGE),
        ("kind: List\nitems: [a, b, c]", {"documents_max": 2}, RefusalReason.TOO_LARGE),
        ("[" * 30 + "]" * 30, {"nesting_max": 20}, RefusalReason.TOO_LARGE),
        ("[a, b, c, d]", {"nodes_max": 3}, RefusalReason.TOO_LARGE),
    ],
    ids=["no yaml", "bytes", "documents", "items", "nesting", "values"],
)
def test_a_text_that_cannot_be_read_is_refused_whole(text, limits, reason):
    found = read(text, **limits)
    assert found.reason is reason


@pytest.mark.parametrize(
    ("name", "is_right"), [("a" * 253, True), ("a" * 100 + ".b", True), ("a" * 254, False), ("a.", False)]
)
def test_a_pod_may_have_every_name_that_kubernetes_lets_it_have(name, is_right):
    """A training job's long name would be refused here and run in the cluster."""
    (found,) = pods(POD.format(name=name))
    assert (found.refusal is None) is is_right
