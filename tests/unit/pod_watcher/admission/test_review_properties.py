"""What holds of every pod, tried on many: reviews settle, promises are kept, and nothing raises."""

import copy
import json
import re
from typing import Any

from factories.cluster.admission import answer, asked_by, container, containers_of, gpu, patched, pod, sent_patch
from hypothesis import given
from hypothesis import strategies as st

from sluice_pod_watcher.admission import AdmissionConfig

OURS = re.compile(r"NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|CUDA_.*|SLUICE_.*|LD_PRELOAD")
NAMES = ("main", "logs", "prep", "proxy")

variables = st.sampled_from(
    [
        *({"name": f"A{at}", "value": "1"} for at in range(5)),
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,video"},
        {"name": "NVIDIA_TF32_OVERRIDE", "value": "0"},
    ]
)
resources = st.sampled_from(
    [
        None,
        None,
        {},
        {"limits": {"memory": "1Gi"}},
        gpu(gpu="1"),
        gpu(gpu="1", priority="1"),
        gpu(gpu="1", gpumem="4000"),
        gpu(gpu="2", gpumem="8000", gpucores="30"),
        gpu(**{"mig-1g.5gb": "1"}),
        {"limits": {"volcano.sh/vgpu-number": "1"}},
        {"requests": {"nvidia.com/gpu": "1"}},
        gpu(gpu="500m"),
    ]
)
annotations = st.dictionaries(
    st.sampled_from(
        [
            "sluice.dev/profile",
            "sluice.dev/memory",
            "logs.sluice.dev/memory",
            "prep.sluice.dev/profile",
            "sluice.dev/mode",
            "fastgshare/gpu_mem",
            "fastgshare/gpu_sm_partition",
            "nvidia.com/vgpu-mode",
            "main.granted.sluice.dev/ticket",
            "example.com/note",
        ]
    ),
    st.sampled_from(["1g.5gb", "4Gi", "mps", "mig", "exclusive,mps", "20", "1073741824", ""]),
    max_size=3,
)
PLAIN_ASKS = st.sampled_from(
    [
        {"sluice.dev/profile": "1g.5gb"},
        {"sluice.dev/memory": "4Gi"},
        {"sluice.dev/memory": "4Gi", "sluice.dev/mode": "auto"},
        {"main.sluice.dev/memory": "4Gi", "prep.sluice.dev/memory": "4Gi"},
        {"fastgshare/gpu_mem": "1073741824", "fastgshare/gpu_sm_partition": "20"},
    ]
)
"""Drawn as they are; a copy is made of whatever is drawn."""


@st.composite
def containers(draw, name):
    made = container(name)
    amounts, env = draw(resources), draw(st.lists(variables, max_size=2))
    if amounts is not None:
        made["resources"] = copy.deepcopy(amounts)
    if env or draw(st.booleans()):
        made["env"] = copy.deepcopy(env)
    if draw(st.integers(0, 9)) == 0:
        made["volumeMounts"] = []
    return made


@st.composite
def pods(draw):
    """A pod as a user may write it: some ask, some are wrong, some are none of ours."""
    apps = [draw(containers(name)) for name in NAMES[: draw(st.integers(1, 2))]]
    init = [draw(containers("prep"))] if draw(st.booleans()) else None
    if init is not None and draw(st.booleans()):
        init[0]["restartPolicy"] = "Always"
    spec: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        gates = st.sampled_from([*["kueue.x-k8s.io/admission"] * 5, "sluice.dev/slice"])
        spec["schedulingGates"] = [{"name": draw(gates)}]
    if draw(st.integers(0, 3)) == 0:
        spec["hostIPC"] = True
    notes = copy.deepcopy(draw(st.none() | st.none() | annotations | PLAIN_ASKS))
    return pod(*apps, annotations=notes, init=init, **spec)


rules = st.builds(
    AdmissionConfig,
    default_mode=st.sampled_from(["", "mps", "auto", "fractional", "exclusive"]),
    runtime_class=st.sampled_from(["", "nvidia"]),
)


@given(pods(), rules, rules)
def test_a_second_review_changes_nothing(made, first, second):
    """The API server calls again as it likes; each call that added something would add it twice."""
    second = AdmissionConfig(default_mode=second.default_mode, runtime_class=first.runtime_class)
    response = answer(made, first)
    if not response.allowed:
        assert response.patch == ()
        return
    after = patched(made, sent_patch(response))
    again = answer(after, second)
    assert again.allowed, again.message
    assert sent_patch(again) == []
    assert again.warnings == () or not response.patch


@given(pods(), rules)
def test_a_pod_that_is_taken_can_be_served_and_sees_nothing_else(made, how):
    """Gate, label, ask, and for each container either its own grant or no device at all."""
    response = answer(made, how)
    if not response.patch:
        return
    before = copy.deepcopy(made)
    after = patched(made, sent_patch(response))
    assert made == before, "the pod in the question was changed in place"
    assert after["metadata"]["labels"]["sluice.dev/managed"] == "true"
    assert [gate["name"] for gate in after["spec"]["schedulingGates"]].count("sluice.dev/slice") == 1
    asked = asked_by(after)
    assert asked.pod.claims
    for each in containers_of(after):
        assert not [name for part in each.get("resources", {}).values() for name in part if "/" in name]
        ours = [entry for entry in each.get("env", []) if OURS.fullmatch(entry["name"])]
        assert len({entry["name"] for entry in ours}) == len({json.dumps(entry) for entry in ours})
        mounted = [mount for mount in each["volumeMounts"] if mount["name"] == "sluice-slice"]
        if asked.claim_for(each["name"]) is None:
            assert {entry.get("value") for entry in ours if entry["name"] != "NVIDIA_DRIVER_CAPABILITIES"} == {"void"}
            assert mounted == []
        else:
            paths = [entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in ours]
            assert all(path.startswith(f"metadata.annotations['{each['name']}.granted.sluice.dev/") for path in paths)
            assert [mount["subPathExpr"] for mount in mounted] == ["$(SLUICE_TICKET)"]


@given(pods(), rules)
def test_what_is_not_ours_in_a_pod_stays_as_it_is(made, how):
    """A patch that loses a user's variable or volume breaks the user's program."""
    after = patched(made, sent_patch(answer(made, how)))
    for old, new in zip(containers_of(made), containers_of(after), strict=True):
        kept = [entry for entry in new.get("env", []) if not OURS.fullmatch(entry["name"])]
        assert kept == [entry for entry in old.get("env", []) if not OURS.fullmatch(entry["name"])]
        assert [mount for mount in new["volumeMounts"] if mount["name"] != "sluice-slice"] == old["volumeMounts"]
        was, now = (each.get("resources", {}).get("limits", {}).get("memory") for each in (old, new))
        assert now == was
    for key, value in (made["metadata"].get("annotations") or {}).items():
        assert after["metadata"]["annotations"][key] == value
