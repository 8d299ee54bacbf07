"""Limits out of a file, on real processes: no broker that loses everything lifts them, and no command changes them."""

import asyncio
import shutil
import signal

from sluice.contracts.messages import Cordoned, QuotaSet

NAMES = ("one", "two")


def set_to(path, gpus: int) -> None:
    """Write the file with the namespace's quota, and the second node cordoned; replaced in one step."""
    draft = path.with_suffix(".new")
    draft.write_text(f"[namespaces.research]\ngpus = {gpus}\n[nodes.gpu-2]\ncordon = true\nwhy = 'fans'\n")
    draft.rename(path)


def quota_of(fleet_state) -> QuotaSet | None:
    return fleet_state.at("quota", QuotaSet, "research")


async def test_limits_in_a_file_outlive_the_broker_and_are_changed_there_alone(up, tmp_path):
    """After the loss of a disk every namespace would be without limits, unnoticed."""
    limits = tmp_path / "limits.toml"
    set_to(limits, 1)
    for name in NAMES:  # before the start: the limits are on the bus before these are asked for
        up.put(name, namespace="research", profile="1g.5gb")
    await up.started("--limits", str(limits))
    async with up.watching() as watching:

        async def waits() -> tuple[str, str]:
            """The pod with the only device, and the pod that waits for it."""
            numbers = "namespace research may have 1 device and has 1"

            def condition(pods, _gpus):
                waiting = [name for name in NAMES if name in pods and numbers in pods[name].message]
                having = [name for name in NAMES if name in pods and pods[name].state == "bound"]
                return (having[0], waiting[0]) if having and waiting else None

            return await watching.until(condition, "one to run, and the other to wait for the quota")

        has, waiting = await waits()
        before = await watching.bound(has)
        named = {"namespace research": ("quota", "unset", "research"), "node gpu-2": ("drain", "gpu-2", "--yes")}
        for what, words in named.items():
            refused = await asyncio.to_thread(up.sluice, *words)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert f"{what} is in the limits file of the pod-watcher 'folder': change it there" in refused.stderr
        first = watching.live.fleet_state.incarnation
        up.process.send_signal(signal.SIGSTOP)  # so that the broker is not started again before its store is gone
        up.child("nats-server").kill()
        shutil.rmtree(up.data_dir / "nats")
        up.process.send_signal(signal.SIGCONT)
        await watching.until(
            lambda _pods, _gpus: watching.live.fleet_state.incarnation != first, "the broker's new life"
        )
        said = await watching.live.until(quota_of, within_s=60, what="the limits to be published again")
        assert said.total.gpus == 1
        after = await watching.bound(has)
        assert (after.allocation, after.containers) == (before.allocation, before.containers)
        assert await waits() == (has, waiting)
        assert watching.live.fleet_state.at("cordon", Cordoned, "gpu-2").why == "fans"
        set_to(limits, 2)
        await watching.bound(waiting)
        limits.write_text("")
        await watching.live.until(
            lambda fleet_state: quota_of(fleet_state) is None and fleet_state.at("cordon", Cordoned, "gpu-2") is None,
            within_s=60,
            what="the limits to be lifted",
        )
        await asyncio.to_thread(up.done, "quota", "set", "research", "--gpus", "9")


def test_a_limits_file_with_a_mistake_ends_the_start_with_a_sentence(up, tmp_path):
    """It would start without limits, with only a log line to show it."""
    limits = tmp_path / "limits.toml"
    limits.write_text("[namespaces.research]\ngpu = 1\n")
    up.start("--limits", str(limits))
    assert up.process.wait(60) == 1
    assert f"{limits}: namespaces.research.gpu = 1: unknown key; known here: gpus, memory" in up.said()
