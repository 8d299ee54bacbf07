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
HALF = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, annotations: {{nvidia.com/vgpu-mode: mig}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: one-mig}}
  containers: [{{name: m, image: x, resources: {{limits: {{nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}}}}}}]
"""
INSTANCES = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{containers: [{containers}]}}
"""
CONTAINER = '{{name: "{name}", image: x, resources: {{limits: {{"nvidia.com/mig-{profile}": {count}}}}}}}'


def write_pod(up, pod, *containers):
    listed = ", ".join(CONTAINER.format(name=name, profile=profile, count=count) for name, profile, count in containers)
    up.write(f"{pod}.yaml", INSTANCES.format(name=pod, containers=listed))


async def test_two_halves_of_one_card_run_side_by_side(emptied):
    """The first half would get the whole card, and the second pod would wait forever."""
    async with emptied.watching() as watching:
        for name in ("half-1", "half-2"):
            emptied.write(f"{name}.yaml", HALF.format(name=name))
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
        limits = '{limits: {"nvidia.com/gpu": 10}}'
        up.write("ten.yaml", INSTANCES.format(name="ten", containers=f"{{name: m, image: x, resources: {limits}}}"))
        assert len(set((await watching.bound("ten")).containers[0].visible_devices.split(","))) == 10


async def test_a_pod_is_given_all_that_eight_gpus_hold(emptied):
    """Nine instances would be refused on a node that holds 56, and five and five in two containers as well."""
    async with emptied.watching() as watching:
        write_pod(emptied, "nine", ("m", "1g.5gb", 9))
        write_pod(emptied, "five-five", ("a", "1g.5gb", 5), ("b", "1g.5gb", 5))
        write_pod(emptied, "media", ("m", "1g.24gb.me.all", 1))
        write_pod(emptied, "own", ("m", "1g.13gb", 3))
        nine, both = await watching.bound("nine"), await watching.bound("five-five")
        media, own = await watching.bound("media"), await watching.bound("own")
        assert [len(part.visible_devices.split(",")) for part in nine.containers] == [9]
        assert [len(part.visible_devices.split(",")) for part in both.containers] == [5, 5]
        assert (media.node, own.node, len(own.containers[0].visible_devices.split(","))) == ("pro", "own", 3)
        for pod in ("nine", "five-five"):
            (emptied.pods_dir / f"{pod}.yaml").unlink()
        write_pod(emptied, "all", ("m", "1g.5gb", 56))
        everything = await watching.bound("all")
        (part,) = everything.containers
        assert len(set(part.visible_devices.split(","))) == 56
        assert everything.node == "eight"
        write_pod(emptied, "more", ("m", "1g.5gb", 57))
        refused = await watching.stands("more", "refused")
        assert "0 to 56" in refused.message
