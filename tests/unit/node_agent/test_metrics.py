"""Metrics and traces of an agent."""

import re

import pytest
from factories.gpus.shared_devices import ON_MIG
from msgspec.structs import replace

from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice_node_agent.core import instructions as do
from sluice_node_agent.shell.agent_metrics import SLICE_INFO, agent_samples


def shown(core) -> dict[tuple[str, ...], float]:
    counts = MetricRegistry()
    with counts.collecting_from(lambda: agent_samples(core)):
        return {(m.name, *labels): value for m, series in counts.samples().items() for labels, value in series.items()}


def test_who_watches_sees_slices_and_whether_the_node_is_open(new_node):
    """An agent that carries out no orders, and how far its slices are."""
    new_node.start()
    assert shown(new_node.agent)["sluice_agent_open",] == 0
    new_node.open()
    new_node.live()
    new_node.order(new_node.grant(new_node.booking("a1", (0, "1g.5gb", 0, 1))))
    new_node.live()
    found = shown(new_node.agent)
    assert found["sluice_agent_open",] == 1
    assert found["sluice_agent_slices", "ready"] == 1
    assert found["sluice_agent_gpus", "healthy"] >= 1
    for none in ("quarantined_places", "foreign_instances", "warnings"):
        assert found[f"sluice_agent_{none}",] == 0


DCGM = """\
# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active (in %).
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="{mig}",pci_bus_id="00000000:07:00.0",device="nvidia0",\
modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="1g.5gb",GPU_I_ID="{one}",Hostname="gpu-1"}} 0.11
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="{mig}",pci_bus_id="00000000:07:00.0",device="nvidia0",\
modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="3g.20gb",GPU_I_ID="{shared}",Hostname="gpu-1",\
DCGM_FI_DRIVER_VERSION="570"}} 0.33
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="{mig}",pci_bus_id="00000000:07:00.0",device="nvidia0",\
modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="1g.5gb",GPU_I_ID="99",Hostname="gpu-1"}} 0.99
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="2",UUID="{whole}",pci_bus_id="00000000:0F:00.0",device="nvidia2",\
modelName="NVIDIA A100-SXM4-40GB",Hostname="gpu-1"}} 0.77
"""
"""As NVIDIA/dcgm-exporter 4.6.0 writes it (internal/pkg/rendermetrics/render_metrics.go, gpuMetricsFormat)."""
JOINED_BY = ("UUID", "GPU_I_ID")


def joined(core, text: str) -> dict[tuple[str, ...], float]:
    """`sluice_slice_info * on (UUID, GPU_I_ID) group_left () METRIC`, by namespace, pod, container and mode.

    A label that is absent is empty, and the side without `group_left` has one series per match, as in Prometheus.
    """
    of_device: dict[tuple[str, ...], float] = {}
    for labels, value in re.findall(r"^\w+\{(.*)\} (\S+)$", text, re.MULTILINE):
        of_series = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        key = tuple(of_series.get(label, "") for label in JOINED_BY)
        assert key not in of_device
        of_device[key] = float(value)
    found = {}
    for sample in agent_samples(core):
        if sample.metric is SLICE_INFO:
            labels = dict(zip(sample.metric.labels, sample.labels, strict=True))
            key = tuple(labels[label] for label in JOINED_BY)
            if key in of_device:
                of_pod = tuple(labels[label] for label in ("namespace", "pod", "container", "mode"))
                found[of_pod] = sample.value * of_device[key]
    return found


def test_figures_of_dcgm_are_joined_to_pods(node):
    """An operator reads whose slice each figure is of; a slice that is gone has none: its place gets the next one."""
    slices = (
        node.booking("a1", (0, "1g.5gb", 0, 1)),
        node.share("a2", ON_MIG),
        node.share("a3", ON_MIG, owner="pod-3"),
        node.booking("a4", (2, None, 0, 8)),
    )
    one = node.serve(*(replace(each, name=f"of-{each.allocation}") for each in slices))
    gpu = next(gpu for gpu in node.agent.snapshot().gpus if gpu.uuid == node.gpus[0])
    ids = {instance.start: instance.gi_id for instance in gpu.instances}
    text = DCGM.format(mig=gpu.uuid, one=ids[0], shared=ids[ON_MIG[2]], whole=node.gpus[2])
    shares = {("default", "of-a2", "main", "mps"): 0.33, ("default", "of-a3", "main", "mps"): 0.33}
    of_whole = {("default", "of-a4", "main", "exclusive"): 0.77}
    assert joined(node.agent, text) == {("default", "of-a1", "main", "exclusive"): 0.11, **shares, **of_whole}
    node.take_back(one)
    assert joined(node.agent, text) == shares | of_whole
    assert {"UUID", "GPU_I_ID", "GPU_I_PROFILE"} <= set(re.findall(r'(\w+)="', text)) & set(SLICE_INFO.labels)


@pytest.fixture
def steps(node):
    """Each instruction of the agent's own with the request that it was a step of when it went out, by kind."""
    found: dict[type, list[str]] = {}
    handle = node.agent.handle

    def noting(event, now):
        out = handle(event, now)
        for each in out:
            if hasattr(each, "token"):
                found.setdefault(type(each), []).append(node.agent.request_of(each.token))
        return out

    node.agent.handle = noting
    return found


def test_steps_of_two_slices_of_one_gpu_are_told_apart(node, steps):
    """They take turns on the GPU, so what was done last says nothing about whose step is next."""
    first = node.serve(node.booking("a1", (0, "3g.20gb", 0, 4)), node.booking("a2", (0, "1g.5gb", 4, 1)))
    for kind in (do.CreateGpuInstance, do.CreateComputeInstance, do.VerifyInstance, do.MakeTicket):
        assert sorted(steps[kind]) == ["req-a1", "req-a2"]
    node.take_back(first)
    assert (steps[do.RemoveTicket], steps[do.DestroyGpuInstance]) == (["req-a1"], ["req-a1"])
    node.serve(node.share("a3", (0, "3g.20gb", 0, 4)))
    assert (steps[do.StartMps], steps[do.CreateGpuInstance][2:]) == (["req-a3"], ["req-a3"])


def test_what_an_agent_does_by_itself_is_of_no_request(node, steps):
    """A reading of a GPU by a timer is in no trace; and a token that is not out has no owner."""
    node.tick(10.0, times=100)
    assert set(steps[do.ReadGpu]) == {""}
    assert node.agent.request_of(10_000_000) == ""
