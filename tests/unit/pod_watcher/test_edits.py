"""What is written wrong, and what is changed while it runs."""

import pytest

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Claim, RequestRejected, RequestWithdrawn, Waived
from sluice.contracts.reasons import RefusalReason
from sluice_pod_watcher.core.folder.events import FolderListed, ManifestFile


def asked_for(bench) -> list[str]:
    return [each.name for each in bench.requests().values() if isinstance(each, AllocationRequested)]


def rejected(bench) -> dict[str, RequestRejected]:
    return {message.origin: message for message in bench.requests().values() if isinstance(message, RequestRejected)}


TENS = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]" for n in range(12)]
ALIAS_BOMB = "\n".join(TENS)


@pytest.mark.parametrize(
    ("text", "reason", "field", "value", "words"),
    [
        ("metadata: [unclosed\n", RefusalReason.NOT_YAML, "line 2", "(end of file)", "bad.yaml is not YAML: while"),
        ("a: b: c\n", RefusalReason.NOT_YAML, "line 1", "a: b: c", "mapping values are not allowed"),
        ("a: 1\na: 2\n", RefusalReason.NOT_YAML, "line 2", "a: 2", "the key 'a' is duplicated"),
        ("a: !!python/name:os.system x\n", RefusalReason.NOT_YAML, "line 1", None, "the tag"),
        ("\x07", RefusalReason.NOT_YAML, "", "", "bad.yaml is not YAML"),
        ("x: *nothing\n", RefusalReason.NOT_YAML, "line 1", "x: *nothing", "*nothing has no anchor"),
        (ALIAS_BOMB, RefusalReason.TOO_LARGE, "line 5", None, "values, aliases expanded"),
        ("[" * 100, RefusalReason.TOO_LARGE, "line 1", "[" * 100, "nested deeper than 64 levels"),
        ("---\na: 1\n" * 1001, RefusalReason.TOO_LARGE, None, "a: 1", "more than 1000 documents"),
        ("kind: pod\nmetadata: {name: a}\n", RefusalReason.NOT_A_POD, "kind", "pod", "bad.yaml, line 1"),
        ("kind: Pos\nspec: {containers: []}\n", RefusalReason.NOT_A_POD, "kind", "Pos", "bad.yaml, line 1"),
        ("a:\n\tb: 1\n", RefusalReason.NOT_YAML, "line 2", "b: 1", "the line is indented with a tab"),
        ("just some words\n", RefusalReason.NOT_A_POD, "", "just some words", "a manifest is a mapping"),
        ("kind: Pod\napiVersion: v2\n", RefusalReason.NOT_A_POD, "apiVersion", "v2", "bad.yaml, line 1"),
    ],
    ids=lambda value: None if not isinstance(value, RefusalReason) else value.value,
)
def test_a_file_that_holds_no_pods_is_refused_by_name_and_place(bench, manifest, text, reason, field, value, words):
    """The author finds the line; the pod in the next file is served."""
    bench.files |= {"bad.yaml": text, "good.yaml": manifest("good")}
    bench.list()
    refusal = rejected(bench)["bad.yaml"].refusal
    assert refusal.reason is reason
    assert field is None or refusal.field == field
    assert value is None or refusal.value == value
    assert words in refusal.message
    assert asked_for(bench) == ["good"]


CHART = """\
apiVersion: v1
kind: Service
metadata:
  name: web
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  template:
    metadata: {annotations: {sluice.dev/profile: 1g.5gb}}
    spec: {containers: [{name: main}]}
"""


def test_a_chart_is_read_as_the_pods_that_its_controllers_would_make(bench):
    """What is no pod is passed over with a line, and what makes pods asks for each of them."""
    bench.edit("chart.yaml", CHART)
    assert sorted(each.name for each in bench.requests().values()) == ["web-0", "web-1"]
    assert "chart.yaml, line 1: Service web is skipped: it has no pod template" in bench.told
    bench.edit("chart.yaml", CHART.replace("replicas: 2", "replicas: 1"))
    bench.list(after_s=2.0)
    assert asked_for(bench) == ["web-0"]


def test_a_guess_about_whom_a_key_speaks_for_is_said(bench, manifest):
    bench.edit("a.yaml", manifest("a", containers=("one", "two")))
    (warning,) = [line for line in bench.told if "applies to container" in line]
    assert "container one" in warning
    assert "one.sluice.dev/profile" in warning


@pytest.mark.parametrize(
    ("keys", "reason", "field", "value"),
    [
        ({"profile": "three slices"}, RefusalReason.UNKNOWN_PROFILE, "sluice.dev/profile", "three slices"),
        ({"gpus": "0"}, RefusalReason.OUT_OF_RANGE, "sluice.dev/gpus", "0"),
        ({"gpus": "9"}, RefusalReason.OUT_OF_RANGE, "sluice.dev/gpus", "9"),
        ({"sm_percentage": "0"}, RefusalReason.OUT_OF_RANGE, "sluice.dev/sm-percentage", "0"),
        ({"sm_percentage": "101"}, RefusalReason.OUT_OF_RANGE, "sluice.dev/sm-percentage", "101"),
        ({"sm_count": "many"}, RefusalReason.INVALID_VALUE, "sluice.dev/sm-count", "many"),
        ({"profile": "1g.5gb", "memory": "10Gi"}, RefusalReason.CONTRADICTION, "sluice.dev/memory", "10Gi"),
    ],
)
def test_a_mistake_in_a_pod_is_refused_with_file_field_and_value(bench, manifest, keys, reason, field, value):
    """One clear sentence; the pod beside it in the same file is served."""
    bench.edit("bad.yaml", manifest("bad", **keys) + "---\n" + manifest("good"))
    message = rejected(bench)["bad.yaml"]
    assert (message.namespace, message.name) == ("default", "bad")
    assert (message.refusal.reason, message.refusal.field, message.refusal.value) == (reason, field, value)
    assert message.refusal.allowed
    assert asked_for(bench) == ["good"]


@pytest.mark.parametrize(
    ("written", "instead", "field"),
    [
        ("  name: bad\n", "", "metadata.name"),
        ("  name: bad\n", "  name: Bad_Name\n", "metadata.name"),
        ("  name: bad\n", "  name: bad\n  namespace: a.b\n", "metadata.namespace"),
        ("    - name: main\n", "    []\n", "spec.containers"),
        ("    - name: main\n", "    - name: main\n    - name: main\n", "spec.containers[1].name"),
        ("    - name: main\n", "    - image: x\n", "spec.containers[0].name"),
    ],
)
def test_a_pod_that_kubernetes_would_refuse_is_refused_here(bench, manifest, written, instead, field):
    """A pod without a name or container cannot be given its devices."""
    bench.edit("bad.yaml", manifest("bad").replace(written, instead))
    assert rejected(bench)["bad.yaml"].refusal.field == field


def test_a_number_without_quotes_is_refused_with_the_cure(bench, manifest):
    """A real API server refuses it too, with a less helpful text."""
    bench.edit("bad.yaml", manifest("bad", gpus="2").replace('"2"', "2"))
    assert rejected(bench)["bad.yaml"].refusal.sentence() == (
        "sluice.dev/gpus = '2': the value of an annotation is a string: put it in quotes (allowed: \"2\", in quotes)"
    )


def test_a_file_that_is_too_large_is_refused(bench):
    bench.handle(FolderListed((ManifestFile("huge.yaml", too_large=True),)))
    refusal = rejected(bench)["huge.yaml"].refusal
    assert (refusal.reason, refusal.allowed) == (RefusalReason.TOO_LARGE, "at most 1048576 bytes")


def test_a_broken_file_leaves_its_living_pods_alone_until_it_is_mended(bench, manifest):
    """Half a file on disk is no reason to end training; the person still learns of it."""
    bench.edit("a.yaml", manifest("a"))
    bench.bound("w1-1")
    before = bench.requests()
    bench.files["a.yaml"] += "\n  broken: ["
    bench.list()
    assert bench.requests() == before
    bench.list(after_s=1.5)
    assert bench.requests()["w1-1"] == before["w1-1"]
    assert rejected(bench)["a.yaml"].refusal.reason is RefusalReason.NOT_YAML
    bench.edit("a.yaml", manifest("a"))
    assert bench.requests()["w1-1"] == before["w1-1"]
    assert isinstance(bench.requests()["w1-2"], RequestWithdrawn)


def test_an_edit_that_cannot_be_understood_leaves_the_pod_as_it_was(bench, manifest):
    bench.edit("a.yaml", manifest("a"))
    bench.edit("a.yaml", manifest("a", gpus="0"))
    bench.list(after_s=1.5)
    said = bench.requests()
    assert isinstance(said["w1-1"], AllocationRequested)
    assert said["w1-2"].refusal.field == "sluice.dev/gpus"
    bench.empty()
    assert [type(message) for message in bench.requests().values()] == [RequestWithdrawn, RequestWithdrawn]


@pytest.mark.parametrize("refused_before", [False, True])
def test_an_edit_before_there_is_a_slice_is_a_new_revision(bench, manifest, refused_before):
    """The pod keeps its place in the timeline; no second request appears."""
    bench.edit("a.yaml", manifest("a"))
    if refused_before:
        bench.refused("w1-1")
    bench.edit("a.yaml", manifest("a", profile="3g.20gb"))
    message = bench.only()
    assert (message.revision, message.claims) == (2, (Claim(container="main", profile="3g.20gb"),))


def test_a_pod_whose_refusal_was_waived_is_counted_as_one_that_waits(bench, manifest):
    bench.edit("a.yaml", manifest("a"))
    bench.refused("w1-1")
    assert bench.watcher.phases()["refused"] == 1
    no_more = Waived(request=RequestId("w1-1"), request_revision=1, allocations=(), cause="it holds no more")
    bench.observe(subjects.binding(RequestId("w1-1")), no_more)
    assert "refused" not in bench.watcher.phases()


@pytest.mark.parametrize("granted", ["before the edit, and forgotten by the bus", "after the edit, for the old ask"])
def test_an_edit_of_a_pod_that_has_its_slice_is_a_new_pod(bench, manifest, granted):
    """What a pod has was given for its last ask, as long as it has it: it would run on with what it no longer wants."""
    bench.edit("a.yaml", manifest("a"))
    if granted.startswith("before"):
        bench.bound("w1-1")
        bench.read(incarnation="2000")
    bench.edit("a.yaml", manifest("a", profile="3g.20gb"))
    bench.bound("w1-1", revision=1)
    said = bench.requests()
    assert isinstance(said["w1-1"], RequestWithdrawn)
    assert (said["w1-2"].revision, said["w1-2"].claims[0].profile) == (1, "3g.20gb")


def test_an_edit_that_was_taken_back_keeps_the_slice_of_the_first_ask(bench, manifest):
    for profile in ("1g.5gb", "3g.20gb", "1g.5gb"):
        bench.edit("a.yaml", manifest("a", profile=profile))
    bench.bound("w1-1", revision=1)
    message = bench.only()
    assert (message.revision, message.claims[0].profile) == (3, "1g.5gb")


def test_the_second_pod_of_a_name_is_refused_and_served_when_the_first_goes(bench, manifest):
    bench.edit("b.yaml", manifest("a"))
    bench.edit("a.yaml", manifest("a", profile="3g.20gb") + "---\n" + manifest("a"))
    double = {message.refusal.message for message in bench.requests().values() if isinstance(message, RequestRejected)}
    assert double == {"a pod of this name is already in b.yaml", "a pod of this name is already in a.yaml"}
    assert bench.requests()["w1-1"].claims[0].profile == "1g.5gb"
    del bench.files["b.yaml"]
    bench.list()
    assert bench.requests()["w1-2"].claims[0].profile == "3g.20gb"


def test_a_pod_without_an_ask_that_would_see_every_gpu_is_warned_of_as_in_a_cluster(bench):
    """It is left alone, and its owner waits for a GPU that only an image or a variable names."""
    head = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: main\n"
    bench.edit("web.yaml", f"{head}    env: [{{name: NVIDIA_VISIBLE_DEVICES, value: all}}]\n")
    bench.list()
    left_alone, warned = bench.told
    assert left_alone == "default/web (web.yaml) requests no slice: ignored"
    assert warned.startswith(
        "default/web (web.yaml): container main: NVIDIA_VISIBLE_DEVICES = 'all': the pod requests no"
    )
    bench.edit("web.yaml", head)
    assert bench.told[2:] == [left_alone]


def test_lists_merge_keys_and_aliases_work(bench):
    bench.files["list.yaml"] = """\
kind: List
items:
- &first
  apiVersion: v1
  kind: Pod
  metadata: {name: one, annotations: &ask {sluice.dev/profile: 1g.5gb}}
  spec: &spec {containers: [{name: main}]}
- kind: Pod
  metadata: {name: two, annotations: {<<: *ask, sluice.dev/gpus: "2"}}
  spec: *spec
- kind: Pod
  metadata: {name: three, annotations: {sluice.dev/gpu: "2"}}
  spec: *spec
"""
    bench.list()
    one, two, three = bench.requests().values()
    assert (one.name, one.claims) == ("one", (Claim(container="main", profile="1g.5gb"),))
    assert (two.name, two.claims) == ("two", (Claim(container="main", profile="1g.5gb", gpus=2),))
    assert "did you mean sluice.dev/gpus?" in three.refusal.message


def test_every_change_is_one_line_in_words(bench, manifest):
    """A reader of the log knows what happened to the pod."""
    bench.edit("a.yaml", manifest("a", memory="8Gi", gpus="2"))
    bench.bound("w1-1")
    bench.empty()
    bench.released("w1-1")
    assert bench.told == [
        "default/a (a.yaml) asks for 2 x 8192 MiB",
        "default/a (a.yaml) has its slice on node-a: main: MIG-1",
        "default/a (a.yaml) was deleted; its request is withdrawn",
        "default/a (a.yaml) holds no slice now (pod gone)",
    ]


def test_what_else_an_answer_waives_is_no_news(bench, manifest):
    """It is for other allocators: a pod would seem to get its slice twice."""
    bench.edit("a.yaml", manifest("a", memory="8Gi"))
    bench.bound("w1-1")
    told = list(bench.told)
    bench.bound("w1-1", waives=("w1-1_r_2",))
    assert bench.told == told


def test_a_warning_of_the_slice_is_a_warning_in_the_log(bench, manifest):
    """The daemon that a pod shares died under it: the log says that it was not the pod."""
    bench.edit("a.yaml", manifest("a", memory="8Gi"))
    bench.bound("w1-1", warnings=("its MPS daemon died and was started again",))
    assert bench.told[-1] == (
        "default/a (a.yaml) has its slice on node-a: main: MIG-1; but: its MPS daemon died and was started again"
    )
