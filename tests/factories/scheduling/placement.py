"""A fleet asked directly, without an allocator around it: for tests of where things go."""

import msgspec
from factories.scheduling.allocator import gpu_report, snapshot
from factories.words import booking_of

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice_allocator.core.placement import ClusterState, NoPlace, Place, PlacementConfig, PlaceRequest, find_place

ALL_MODES = ("exclusive", "mps", "fractional")


def node(name: str, gpus: int, **changes: object) -> msg.NodeSnapshot:
    """A node of empty GPUs that can do every mode: by default A100-40GB with MIG."""
    of_node = {key: changes.pop(key) for key in ("modes", "time_quota") if key in changes}
    reports = tuple(gpu_report(name, index, **changes) for index in range(gpus))
    return snapshot(name, reports, **({"modes": ALL_MODES} | of_node))


class Shop:
    """Gives places and books them, as long as there are any."""

    def __init__(self, *nodes: msg.NodeSnapshot, rules: PlacementConfig | None = None) -> None:
        self.cluster = ClusterState(rules) if rules is not None else ClusterState()
        self.booked: dict[str, msg.Booking] = {}
        self.reports: dict[str, msg.GpuReport] = {}
        self._numbered = 0
        for each in nodes:
            self.cluster.show(each)
            self.reports |= {gpu.uuid: gpu for gpu in each.gpus}

    def host(self, name: str, **facts: object) -> None:
        values = {"cpu_cores": 64.0, "memory_mib": 1 << 20, "pods_free": 110} | facts
        self.cluster.set_host(NodeName(name), msg.HostFacts(**values))

    def ask(self, *claims: msg.Claim, **rest: object) -> Place | NoPlace:
        """What would be given; nothing is booked."""
        return find_place(self.cluster, PlaceRequest(claims, **rest))

    def take(self, *claims: msg.Claim, room: msg.HostRoom = msg.HostRoom(), **rest: object) -> str | None:  # noqa: B008  # frozen
        """Book what is given, under the name that is returned; None when nothing is."""
        place = self.ask(*claims, **rest)
        if isinstance(place, NoPlace):
            return None
        self._numbered += 1
        name = f"a{self._numbered}"
        booking = booking_of(
            name, place.node, place.devices, namespace=str(rest.get("namespace", "default")), room=room
        )
        self.booked[name] = booking
        self.cluster.book(booking)
        return name

    def take_on(self, uuid: str, asked: msg.Claim, **rest: object) -> str:
        name = self.take(msgspec.structs.replace(asked, only=msg.DeviceFilter(uuids=(GpuUuid(uuid),))), **rest)
        assert name is not None
        return name

    def give_back(self, name: str) -> None:
        del self.booked[name]
        self.cluster.unbook(AllocationId(name))

    def devices(self, name: str | None) -> tuple[msg.DeviceGrant, ...]:
        assert name is not None
        return self.booked[name].devices

    def all_devices(self) -> list[msg.DeviceGrant]:
        return [device for booking in self.booked.values() for device in booking.devices]

    def creatable(self, uuid: str) -> dict[str, int]:
        """Per profile, how many more instances of it alone are given on this GPU now. Nothing stays booked."""
        return {profile.name: self._how_many(uuid, profile.name) for profile in self.reports[uuid].profiles}

    def _how_many(self, uuid: str, profile: str) -> int:
        made = []
        only = msg.DeviceFilter(uuids=(GpuUuid(uuid),))
        while (name := self.take(claim(profile=profile, only=only))) is not None:
            made.append(name)
        for name in made:
            self.give_back(name)
        return len(made)


def claim(**changes: object) -> msg.Claim:
    """One container's claim: by default a whole GPU."""
    return msg.Claim(**({"container": "main"} | changes))


def share(percent: int, **changes: object) -> msg.Claim:
    """An amount of so many hundredths of a GPU."""
    return claim(modes=("fractional",), shares_percent=percent, **changes)


def given(devices: tuple[msg.DeviceGrant, ...]) -> list[tuple[str | None, int, int]]:
    return [(device.profile, device.start, device.size) for device in devices]


def percents(devices: tuple[msg.DeviceGrant, ...]) -> list[int]:
    return [device.share.sm_partition for device in devices if device.share is not None]
