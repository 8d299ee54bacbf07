"""A kubelet has ResourceClaims prepared by a real agent with simulated GPUs, over its own sockets and both versions."""

import asyncio
import json

import pytest
from factories.agent_driver import AgentProcess, short_folder
from factories.broker.bus_rigs import broker_and_bus
from factories.cluster.claim_kubelet import ClaimKubelet
from factories.waiting import until
from judges.cdi_rules import what_is_wrong

from sluice.contracts.dra.names import DRIVER, cdi_device, device_names
from sluice.contracts.ids import NodeName
from sluice.contracts.messages import ResourceClaimRef, Share

NODE = NodeName("gpu-1.example")
POD = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
CLAIM = "7a1b2c3d-9c1e-4b7a-8f10-2b6c5d4e3f21"
FLEET = f"""
[[node]]
name = "{NODE}"
gpus = [{{ model = "a100-40gb", count = 1 }}, {{ model = "a100-40gb", count = 1, mig = false }}]
timing = {{ create_ms = 5, destroy_ms = 5 }}
"""
SLICE = (0, "3g.20gb", 4, 4)
OLD = ("v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")


class Scene(AgentProcess):
    """A broker, an agent as a process, and a kubelet."""

    def __init__(self, folder, broker, bus, kubelet):
        settings = {
            "SLUICE_NODE_AGENT_ROLE": "agent",
            "SLUICE_NODE_AGENT_NODES": NODE,
            "SLUICE_NODE_AGENT_FLEET_FILE": folder / "fleet.toml",
            "SLUICE_NODE_AGENT_KUBELET_ROOT": kubelet.root,
            "SLUICE_NODE_AGENT_PODS_DIR": folder / "pods",
            "SLUICE_NODE_AGENT_CDI_DIR": folder / "cdi",
            "SLUICE_NODE_AGENT_READ_DEVICES_S": 0.2,
        }
        super().__init__(NODE, folder, broker, bus, **settings)
        self.kubelet, self.cdi = kubelet, folder / "cdi"

    async def start(self):
        await super().start()
        try:
            await self.kubelet.register()
        except TimeoutError:
            raise AssertionError(self.said()) from None

    async def grant_claim(self, *devices, share=None):
        claim = ResourceClaimRef(uid=CLAIM, name="sluice-x", requests={"main": "main"})
        pod = {"owner": POD, "source": "cluster", "resource_claims": (claim,)}
        return await self.grant(NODE, "a1_R_1", *devices, share=share, **pod)

    def file(self):
        (path,) = self.cdi.glob("*.json")
        return json.loads(path.read_text())


BOTH = pytest.mark.parametrize("scene", ["v1", "v1beta1"], indirect=True)
"""Versions of a kubelet's calls."""


@pytest.fixture
async def scene(request, tmp_path):
    with short_folder() as folder:
        (folder / "fleet.toml").write_text(FLEET)
        (folder / "pods").mkdir()
        kubelet = ClaimKubelet(folder / "kubelet", *(OLD if getattr(request, "param", "v1") == "v1beta1" else ()))
        async with broker_and_bus(tmp_path) as (broker, bus), Scene(folder, broker, bus, kubelet) as there:
            await there.start()
            yield there


async def _snapshot(scene, *, hands_over):
    async def look():
        snapshot = await scene.snapshot()
        return snapshot if snapshot.kubelet_hands_over is hands_over else None

    return await until(look)


@BOTH
async def test_a_claim_is_handed_over_and_taken_back(scene):
    """The whole life of a pod's device: registered, prepared, again after a killed agent, and given back."""
    kubelet = scene.kubelet
    info = kubelet.info
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert list(info.supported_versions)[:2] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert info.endpoint == str(kubelet.root / "plugins" / DRIVER / "dra.sock")
    early = asyncio.create_task(kubelet.prepare(CLAIM))
    booking = await scene.grant_claim(SLICE)
    answer = (await early)[CLAIM]
    name = device_names(booking.allocation, booking.resource_claims)[CLAIM, "main"]
    assert answer.error == ""
    (device,) = answer.devices
    assert (list(device.request_names), device.pool_name, device.device_name) == (["main"], NODE, name)
    assert list(device.cdi_device_ids) == [cdi_device(CLAIM, name)]
    assert (await scene.ready(NODE, "a1_R_1")).ticket == ""
    spec = scene.file()
    assert what_is_wrong(spec) == []
    (described,) = spec["devices"]
    assert f"{spec['kind']}={described['name']}" == device.cdi_device_ids[0]
    paths = [node["path"] for node in described["containerEdits"]["deviceNodes"]]
    assert paths[0] == "/dev/nvidia0"
    assert [path.startswith("/dev/nvidia-caps/nvidia-cap") for path in paths[1:]] == [True, True]
    assert {(node["major"], node["minor"]) for node in described["containerEdits"]["deviceNodes"]} == {(1, 3)}
    await _snapshot(scene, hands_over=True)
    await scene.kill()
    for path in scene.cdi.iterdir():
        path.unlink()
    await scene.start()
    await _snapshot(scene, hands_over=True)
    assert (await kubelet.prepare(CLAIM))[CLAIM] == answer
    assert scene.file() == spec
    assert (await kubelet.unprepare(CLAIM))[CLAIM].error == ""
    assert list(scene.cdi.glob("*.json")) == []
    await scene.revoke(booking)
    await scene.gone(NODE, "a1_R_1")
    assert scene.instances(NODE) == []
    assert (await kubelet.unprepare(CLAIM))[CLAIM].error == "", "a kubelet may repeat it"


async def test_a_share_finds_its_daemon_by_its_file(scene):
    """MPS, without a volume."""
    await scene.grant_claim(SLICE, share=Share(mode="mps", uid=0, memory_mib=4096))
    assert (await scene.kubelet.prepare(CLAIM))[CLAIM].error == ""
    (described,) = scene.file()["devices"]
    edits = described["containerEdits"]
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/sluice/slice/pipe" in edits["env"]
    (mount,) = [each for each in edits["mounts"] if each["containerPath"] == "/run/sluice/slice"]
    assert mount["hostPath"].startswith(str(scene.data_dir))


@BOTH
async def test_a_pods_status_shows_what_is_wrong_with_its_gpu(scene):
    """An Xid reaches the kubelet within seconds."""
    await scene.grant_claim((1, None, 0, 1))
    assert (await scene.kubelet.prepare(CLAIM))[CLAIM].error == ""
    async with asyncio.timeout(20), scene.kubelet.health() as stream:
        seen = []
        async for update in stream:
            (device,) = update.devices
            seen.append(device.health)
            if device.health == 1:
                with scene.hardware(NODE).changing() as hardware:
                    hardware.faults.xid, hardware.faults.xid_gpu = 48, 1
            if device.health == 2:
                assert "Xid 48" in device.message
                assert device.device.pool_name == NODE
                break
    assert seen[0] == 1
    assert seen[-1] == 2


async def test_a_kubelet_that_rejects_the_plugin_gets_no_claims(scene):
    """The allocator places no pod with a claim there."""
    await scene.kubelet.register(error="no such version")
    snapshot = await _snapshot(scene, hands_over=False)
    assert any("it rejected the plugin: no such version" in warning for warning in snapshot.warnings)
