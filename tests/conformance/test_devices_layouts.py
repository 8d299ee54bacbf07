"""What fits beside what on every model, by both backends; the oracle `judges.layouts` shares no rule with them."""

import random
from operator import attrgetter
from typing import Any

import pytest
from factories.gpus.instances import instance_of
from judges.layouts import Layouts
from nvml.backends import DeviceRig
from nvml.tables import CATALOG

from sluice.mig.catalog import mig_models
from sluice_node_agent.device.port import InsufficientResourcesError, InvalidArgumentError

MODELS = [model.key for model in mig_models()]
STEPS = 1_000
FACTS = attrgetter("profile_id", "compute_slices", "memory_mib", "multiprocessors", "max_instances")
ENGINES = attrgetter("copy_engines", "decoders", "encoders", "jpegs", "ofas")


class Oracle:
    """What may be on one GPU of a model, by another hand."""

    def __init__(self, key: str) -> None:
        self._layouts = Layouts.of_catalog(CATALOG)
        self._layouts.has_model("gpu", key, mig=True)
        self._there: set[str] = set()

    def put(self, profile: str, start: int, size: int) -> bool:
        name = f"{profile}@{start}"
        if name in self._there:
            return False
        if self._layouts.grant(name, "default", [{"gpu": "gpu", "profile": profile, "start": start, "size": size}]):
            self._layouts.release(name)
            return False
        self._there.add(name)
        return True

    def take(self, profile: str, start: int) -> None:
        name = f"{profile}@{start}"
        self._there.remove(name)
        self._layouts.release(name)


def _spans(profile: Any) -> list[tuple[int, int]]:
    return sorted((span.start, span.size) for span in profile.placements)


def _places(rig: DeviceRig, gpu: int = 0) -> list[tuple[str, int, int, int]]:
    profiles = rig.backend.read()[gpu].profiles
    return [(each.name, each.profile_id, span.start, span.size) for each in profiles for span in each.placements]


@pytest.mark.parametrize("key", MODELS)
def test_every_profile_is_reported_and_can_be_made_at_each_of_its_placements(make_devices, key):
    """A slice that the catalog promises could not be had on the real GPU, or would be another one."""
    rig = make_devices(f'{{model="{key}"}}')
    (report,) = rig.backend.read()
    model = next(model for model in mig_models() if model.key == key)
    promised = {each.name: (*FACTS(each), *each.engines, *_spans(each)) for each in model.profiles}
    assert {each.name: (*FACTS(each), *ENGINES(each), *_spans(each)) for each in report.profiles} == promised
    assert (report.memory_mib, report.multiprocessors) == (model.memory_mib, model.multiprocessors)
    assert (report.memory_slices, report.compute_slices) == (model.memory_slices, model.compute_slices)
    uuids = set()
    for name, profile_id, start, size in _places(rig):
        gi_id = rig.backend.create_gpu_instance(report.uuid, profile_id, start, size)
        uuid = rig.backend.create_compute_instance(report.uuid, gi_id)
        (found,) = rig.backend.read_gpu(report.uuid).instances
        assert (found.gi_id, found.profile, found.start, found.size, found.uuid) == (gi_id, name, start, size, uuid)
        assert uuid.startswith("MIG-")
        uuids.add(uuid)
        rig.backend.destroy_compute_instance(report.uuid, gi_id, uuid)
        rig.backend.destroy_gpu_instance(report.uuid, gi_id, start, size)
    assert len(uuids) == len(_places(rig))
    assert rig.spans() == []


@pytest.mark.parametrize("key", MODELS)
def test_two_instances_are_together_exactly_where_the_hardware_has_room_for_both(make_devices, key):
    """A tenant would be given slices or engines that another one has, or be refused what is free."""
    rig = make_devices(f'{{model="{key}"}}')
    (uuid,) = rig.uuids()
    places = _places(rig)
    oracle = Oracle(key)
    for number, (first, first_id, first_start, first_size) in enumerate(places):
        one = rig.backend.create_gpu_instance(uuid, first_id, first_start, first_size)
        assert oracle.put(first, first_start, first_size)
        for second, second_id, start, size in places[number:]:
            if not oracle.put(second, start, size):
                with pytest.raises(InsufficientResourcesError):
                    rig.backend.create_gpu_instance(uuid, second_id, start, size)
                continue
            two = rig.backend.create_gpu_instance(uuid, second_id, start, size)
            assert two != one
            rig.backend.destroy_gpu_instance(uuid, two, start, size)
            oracle.take(second, start)
        rig.backend.destroy_gpu_instance(uuid, one, first_start, first_size)
        oracle.take(first, first_start)


@pytest.mark.parametrize(
    ("key", "there", "refused", "allowed"),
    [
        # One JPEG and one optical flow engine, which +me takes.
        ("a100-40gb", [("1g.5gb+me", 0)], [("1g.5gb+me", 6)], [("1g.5gb", 1), ("3g.20gb", 4)]),
        ("h100-sxm-80gb", [("1g.10gb+me", 6)], [("1g.10gb+me", 0)], [("1g.20gb", 0), ("4g.40gb", 0)]),
        # Of an A30 both +me profiles take them.
        ("a30-24gb", [("1g.6gb+me", 0)], [("2g.12gb+me", 2), ("1g.6gb+me", 3)], [("2g.12gb", 2), ("1g.6gb", 1)]),
        ("a30-24gb", [("2g.12gb+me", 2)], [("1g.6gb+me", 0), ("2g.12gb+me", 0)], [("2g.12gb", 0)]),
        # +me.all takes every media engine: only instances without any go beside it.
        (
            "rtx-pro-6000-blackwell-96gb",
            [("1g.24gb+me.all", 0)],
            [("1g.24gb", 3), ("1g.24gb+gfx", 6), ("2g.48gb", 6), ("2g.48gb+me.all", 6), ("1g.24gb+me", 9)],
            [("1g.24gb-me", 3), ("2g.48gb-me", 6)],
        ),
        (
            "rtx-pro-6000-blackwell-96gb",
            [("1g.24gb-me", 0), ("1g.24gb-me", 3)],
            [("2g.48gb", 0), ("4g.96gb+gfx", 0)],
            [("2g.48gb+me.all", 6), ("2g.48gb+gfx", 6), ("1g.24gb+gfx", 9)],
        ),
        ("rtx-pro-6000-blackwell-96gb", [("1g.24gb", 9)], [("1g.24gb+me.all", 0)], [("1g.24gb+me", 0)]),
    ],
)
def test_no_engine_is_given_away_twice(make_devices, key, there, refused, allowed):
    """Two tenants would find one media engine between them."""
    rig = make_devices(f'{{model="{key}"}}')
    (uuid,) = rig.uuids()
    for profile, start in there:
        rig.make(profile, start, compute=False)
    for profile, start in refused:
        with pytest.raises(InsufficientResourcesError):
            rig.make(profile, start, compute=False)
    for profile, start in allowed:
        gi_id, _ = rig.make(profile, start, compute=False)
        rig.backend.destroy_gpu_instance(uuid, gi_id, start, instance_of(rig.backend, uuid, gi_id).size)


@pytest.mark.parametrize("key", MODELS)
def test_placements_that_are_not_listed_are_refused_as_wrong_and_not_as_full(make_devices, key):
    """An order that can never be carried out would be tried again for ever."""
    rig = make_devices(f'{{model="{key}"}}')
    (report,) = rig.backend.read()
    for profile in report.profiles:
        listed = {(span.start, span.size) for span in profile.placements}
        for start in range(report.memory_slices):
            for size in {1, 2, 3, 4, profile.placements[0].size}:
                if (start, size) in listed:
                    continue
                with pytest.raises(InvalidArgumentError):
                    rig.backend.create_gpu_instance(report.uuid, profile.profile_id, start, size)
    with pytest.raises(InvalidArgumentError):
        rig.backend.create_gpu_instance(report.uuid, 4711, 0, 1)
    assert rig.spans() == []


def test_a_thousand_random_steps_leave_what_the_hardware_would_hold(make_devices):
    """Instances of a busy GPU would overlap, vanish, or stay behind after many changes."""
    keys = ["a100-40gb", "a30-24gb", "rtx-pro-6000-blackwell-96gb"]
    rig = make_devices(", ".join(f'{{model="{key}"}}' for key in keys))
    chance = random.Random(1)
    uuids, places = rig.uuids(), [_places(rig, gpu) for gpu in range(3)]
    oracles = [Oracle(key) for key in keys]
    there: list[dict[int, tuple[str, int, int, str]]] = [{}, {}, {}]
    for step in range(STEPS):
        gpu = chance.randrange(3)
        here, uuid, backend = there[gpu], uuids[gpu], rig.backend
        if here and chance.random() < 0.4:
            gi_id = chance.choice(list(here))
            name, start, size, mig = here.pop(gi_id)
            if mig:
                backend.destroy_compute_instance(uuid, gi_id, mig)
            backend.destroy_gpu_instance(uuid, gi_id, start, size)
            oracles[gpu].take(name, start)
        else:
            name, profile_id, start, size = chance.choice(places[gpu])
            if not oracles[gpu].put(name, start, size):
                with pytest.raises(InsufficientResourcesError):
                    backend.create_gpu_instance(uuid, profile_id, start, size)
            else:
                gi_id = backend.create_gpu_instance(uuid, profile_id, start, size)
                assert gi_id not in here
                mig = backend.create_compute_instance(uuid, gi_id) if chance.random() < 0.7 else ""
                here[gi_id] = (name, start, size, mig)
        if step % 50 == 0:
            found = {i.gi_id: (i.profile, i.start, i.size, i.uuid) for i in backend.read()[gpu].instances}
            assert found == here
