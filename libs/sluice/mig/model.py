"""GPU models as plain values: profiles, where each may start, and what each uses.

A *memory slice* is the unit of placement (8 on most models, 12 on some), a *compute slice* is the `g` of a profile's
name. Never mix the two."""

from collections.abc import Iterator
from dataclasses import dataclass, field

INSTANCES_MAX = 7
"""Of one GPU (NVIDIA MIG user guide: "up to seven independent GPU instances"); no model of the catalog has more."""


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """A span of memory slices: `size` of them from `start` on."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        return ((1 << self.size) - 1) << self.start


@dataclass(frozen=True, slots=True)
class Engines:
    """Media and copy engines of an instance, or of a whole GPU."""

    copy: int = 0
    decode: int = 0
    encode: int = 0
    jpeg: int = 0
    ofa: int = 0

    def __iter__(self) -> Iterator[int]:
        yield from (self.copy, self.decode, self.encode, self.jpeg, self.ofa)

    def __add__(self, other: "Engines") -> "Engines":
        return Engines(*(mine + its for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of instance. `profile_id` is for NVML's create and list calls, `nvml_enum` for its profile query."""

    name: str
    profile_id: int
    nvml_enum: int | None
    compute_slices: int
    memory_mib: int
    multiprocessors: int
    engines: Engines
    max_instances: int
    placements: tuple[Placement, ...]

    @property
    def memory_slices(self) -> int:
        return min((placement.size for placement in self.placements), default=0)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU model; `key` differs where any fact does. The first of `product_names` is what devices report."""

    key: str
    product_names: tuple[str, ...]
    memory_mib: int
    multiprocessors: int
    memory_slices: int
    compute_slices: int
    profiles: tuple[Profile, ...]
    short_names: tuple[str, ...] = field(default=(), compare=False)
    confidence: str = field(default="reported", compare=False)
    """`reported` by a device; in the catalog `high` (as devices were seen to report), or in part `inferred`."""
    architecture: str = field(default="", compare=False)
    """In the catalog its family and, where several differ, the chip: `hopper`, `ada-ad102`. Empty when reported."""
    _by_name: dict[str, Profile] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)
    _largest: Profile | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {profile.name: profile for profile in self.profiles})
        largest = max(self.profiles, key=lambda each: (each.compute_slices, each.memory_mib), default=None)
        object.__setattr__(self, "_largest", largest)
        object.__setattr__(self, "_hash", hash((self.key, self.memory_mib, self.memory_slices, self.profiles)))

    def __hash__(self) -> int:
        return self._hash

    def profile(self, name: str) -> Profile | None:
        return self._by_name.get(name)

    @property
    def largest(self) -> Profile:
        """The profile that is the whole GPU; the first of equals. Raises ValueError on a model without profiles."""
        if self._largest is None:
            raise ValueError(f"{self.key} has no MIG profiles")
        return self._largest

    def memory_percent(self, profile: Profile) -> int:
        """The part of the GPU's memory that an instance has, in whole percent of its slices (MiB differ a little)."""
        return 100 * profile.memory_slices // max(1, self.largest.memory_slices)

    @property
    def engines(self) -> Engines:
        """The engines of the whole GPU: the most that any profile has, so that none is impossible on an empty one."""
        counts = [tuple(profile.engines) for profile in self.profiles]
        return Engines(*(max(column) for column in zip(*counts, strict=True)))
