"""Which container an annotation is about that names none: never an injected proxy."""

import pytest
from factories.cluster.admission import answer, container, env_of, pod, taken

from sluice.contracts.pod_specs import MainContainer, main_container

DEFAULT = "kubectl.kubernetes.io/default-container"
STATUS = "sidecar.istio.io/status"


@pytest.mark.parametrize(
    ("annotations", "names", "main"),
    [
        ({}, ["main"], MainContainer("main")),
        ({}, ["istio-proxy", "notebook"], MainContainer("notebook")),
        ({}, ["linkerd-proxy", "vault-agent", "train", "daprd"], MainContainer("train")),
        ({}, ["istio-proxy"], MainContainer("istio-proxy")),
        ({}, ["a", "b"], MainContainer("a", ("a", "b"))),
        ({}, ["istio-proxy", "a", "b"], MainContainer("a", ("a", "b"))),
        ({DEFAULT: "b"}, ["a", "b"], MainContainer("b")),
        ({DEFAULT: "istio-proxy"}, ["istio-proxy", "b"], MainContainer("istio-proxy")),
        ({DEFAULT: "gone"}, ["a", "b"], MainContainer("a", ("a", "b"))),
        ({STATUS: '{"containers": ["mesh"]}'}, ["mesh", "a"], MainContainer("a")),
        ({STATUS: '{"containers": null}'}, ["mesh", "a"], MainContainer("mesh", ("mesh", "a"))),
        ({STATUS: "[" * 10_000}, ["mesh", "a"], MainContainer("mesh", ("mesh", "a"))),
        ({STATUS: 7, DEFAULT: None}, ["a"], MainContainer("a")),
        ({}, [], MainContainer("")),
    ],
)
def test_the_main_container_is_named_or_else_the_first_that_is_no_known_proxy(annotations, names, main):
    """What says it exactly wins over what is guessed, and a guess is known as one."""
    assert main_container(annotations, names) == main


@pytest.mark.parametrize(
    "ask", [{"sluice.dev/profile": "1g.5gb"}, {"fastgshare/gpu_mem": "1073741824", "fastgshare/gpu_sm_partition": "20"}]
)
def test_a_mesh_proxy_that_comes_first_gets_no_slice(ask):
    made = taken(pod(container("istio-proxy"), container("notebook"), annotations=ask))
    assert env_of(made, "istio-proxy") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert "SLUICE_TICKET" in env_of(made, "notebook")


def test_a_guess_is_warned_of_and_a_name_is_not():
    """With two containers, the sentence shows how to name one."""
    two = (container("one"), container("two"))
    (warning,) = answer(pod(*two, annotations={"sluice.dev/profile": "1g.5gb"})).warnings
    assert warning == (
        "sluice.dev/profile applies to container one, the first one, and not to two: use one.sluice.dev/profile"
    )
    named = [
        {"two.sluice.dev/profile": "1g.5gb"},
        {"sluice.dev/profile": "1g.5gb", DEFAULT: "two"},
        {"two.sluice.dev/profile": "1g.5gb", "sluice.dev/priority": "1"},
    ]
    assert [answer(pod(*two, annotations=each)).warnings for each in named] == [(), (), ()]
    (warning,) = answer(
        pod(*two, annotations={"fastgshare/gpu_mem": "1073741824", "fastgshare/gpu_sm_partition": "20"})
    ).warnings
    assert warning.endswith(f"set {DEFAULT}")


def test_what_holds_for_every_container_is_no_guess():
    """Driver capabilities of the pod are those of each container with a GPU; a warning would say they are of one."""
    ask = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    two = (container("one", resources=ask), container("two", resources=ask))
    made = answer(pod(*two, annotations={"sluice.dev/driver-capabilities": "graphics"}))
    assert made.warnings == ()


def test_the_main_container_stays_when_others_come_before_it_later():
    """A mesh may come after the ask was stored, under whatever name."""
    made = taken(pod(container("main"), annotations={"sluice.dev/profile": "1g.5gb"}))
    made["spec"]["containers"].insert(0, container("surprise"))
    again = taken(made)
    assert env_of(again, "surprise") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert "SLUICE_TICKET" in env_of(again, "main")
