"""Parts of a GPU, and more instances than a node has GPUs: manifests in the folder of a running system."""

FLEET = """\
[[node]]
name = "one-mig"
labels = { "kubernetes.io/hostname" = "one-mig" }
gpus = [{ model = "a100-40gb" }]
timing = { create_ms = 0, destroy_ms = 0 }
[[node]]
name = "eight"
labels = { "kubernetes.io/hostname" = "eight" }
gpus = [{ model = "a100-40gb", count = 8 }]
timing = { create_ms = 0, destroy_ms = 0 }
[[node]]
name = "pro"
gpus = [{ model = "rtx-pro-6000" }]
[[node]]
name = "own"
[[node.gpus]]
model = "NVIDIA X100"
memory_mib = 98304
multiprocessors = 132
profiles = [{ name = "1g.13gb", memory_mib = 11264, multiprocessors = 16, starts = [0, 1, 2], size = 1 }]
"""
HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}


def ask(up, pod: str, *containers: tuple[str, dict[str, int]], spec=None, **more) -> None:
    """A pod of containers with these limits."""
    listed = [{"name": name, "image": "x", "resources": {"limits": limits}} for name, limits in containers]
    up.put(pod, spec={"containers": listed, **(spec or {})}, **more)


def mig(profile: str, count: int) -> dict[str, int]:
    return {f"nvidia.com/mig-{profile}": count}


async def test_two_halves_of_one_card_run_side_by_side(emptied):
    """The first half would get the whole card, and the second pod would wait forever."""
    async with emptied.watching() as watching:
        for name in ("half-1", "half-2"):
            on = {"nodeSelector": {"kubernetes.io/hostname": "one-mig"}}
            ask(emptied, name, ("m", HALF), spec=on, annotations={"nvidia.com/vgpu-mode": "mig"})
        for name in ("half-1", "half-2"):
            await watching.bound(name)
        shown = emptied.done("gpus")
        for name in ("half-1", "half-2"):
            assert f"default/{name}  3g.20gb" in shown or f"{name} 3g.20gb" in shown, shown


async def test_a_pod_is_given_all_gpus_of_a_node_of_sixteen(up, tmp_path):
    """Ten whole GPUs would be refused where the fleet has a node of sixteen."""
    up.fleet = tmp_path / "fleet.toml"
    up.fleet.write_text('[[node]]\nname = "n"\ngpus = [{ model = "t4", count = 16 }]\n', encoding="utf-8")
    await up.started()
    async with up.watching() as watching:
        ask(up, "ten", ("m", {"nvidia.com/gpu": 10}))
        assert len(set((await watching.bound("ten")).containers[0].visible_devices.split(","))) == 10


async def test_a_pod_is_given_all_that_eight_gpus_hold(emptied):
    """Nine instances would be refused on a node that holds 56, and five and five in two containers as well."""
    async with emptied.watching() as watching:
        ask(emptied, "nine", ("m", mig("1g.5gb", 9)))
        ask(emptied, "five-five", ("a", mig("1g.5gb", 5)), ("b", mig("1g.5gb", 5)))
        ask(emptied, "media", ("m", mig("1g.24gb.me.all", 1)))
        ask(emptied, "own", ("m", mig("1g.13gb", 3)))
        nine, both = await watching.bound("nine"), await watching.bound("five-five")
        media, own = await watching.bound("media"), await watching.bound("own")
        assert [len(part.visible_devices.split(",")) for part in nine.containers] == [9]
        assert [len(part.visible_devices.split(",")) for part in both.containers] == [5, 5]
        assert (media.node, own.node, len(own.containers[0].visible_devices.split(","))) == ("pro", "own", 3)
        for pod in ("nine", "five-five"):
            emptied.remove(pod)
        ask(emptied, "all", ("m", mig("1g.5gb", 56)))
        everything = await watching.bound("all")
        (part,) = everything.containers
        assert len(set(part.visible_devices.split(","))) == 56
        assert everything.node == "eight"
        ask(emptied, "more", ("m", mig("1g.5gb", 57)))
        refused = await watching.stands("more", "refused")
        assert "0 to 56" in refused.message
