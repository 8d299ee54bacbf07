"""What three GPU models allow, written down a second time for the judge.

Copied by hand from NVIDIA's MIG user guide (profiles and placements of A100 and A30) and from `nvidia-smi mig -lgip`
and `-lgipp` listings, and not read from the catalog: no mistake there is repeated here.
"""

from dataclasses import dataclass

Span = tuple[int, int]
"""Start and size, in memory slices."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One profile. `engines`: copy, decode, encode, JPEG, optical flow."""

    name: str
    profile_id: int
    compute_slices: int
    memory_mib: int
    multiprocessors: int
    engines: tuple[int, int, int, int, int]
    max_instances: int
    placements: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One model. The engine budget of a GPU is that of its largest profile (the last row)."""

    product_name: str
    memory_mib: int
    multiprocessors: int
    memory_slices: int
    compute_slices: int
    profiles: tuple[ProfileRow, ...]

    def profile(self, name: str) -> ProfileRow | None:
        return next((row for row in self.profiles if row.name == name), None)

    def profile_of_id(self, profile_id: int) -> ProfileRow | None:
        return next((row for row in self.profiles if row.profile_id == profile_id), None)

    @property
    def budget(self) -> tuple[int, int, int, int, int]:
        return self.profiles[-1].engines


def _spans(size: int, *starts: int) -> tuple[Span, ...]:
    return tuple((start, size) for start in starts)


A100 = GpuRow(
    "NVIDIA A100-SXM4-40GB",
    40960,
    108,
    8,
    7,
    (
        ProfileRow("1g.5gb", 19, 1, 4864, 14, (1, 0, 0, 0, 0), 7, _spans(1, 0, 1, 2, 3, 4, 5, 6)),
        ProfileRow("1g.5gb+me", 20, 1, 4864, 14, (1, 1, 0, 1, 1), 1, _spans(1, 0, 1, 2, 3, 4, 5, 6)),
        ProfileRow("1g.10gb", 15, 1, 9984, 14, (1, 1, 0, 0, 0), 4, _spans(2, 0, 2, 4, 6)),
        ProfileRow("2g.10gb", 14, 2, 9984, 28, (2, 1, 0, 0, 0), 3, _spans(2, 0, 2, 4)),
        ProfileRow("3g.20gb", 9, 3, 20096, 42, (3, 2, 0, 0, 0), 2, _spans(4, 0, 4)),
        ProfileRow("4g.20gb", 5, 4, 20096, 56, (4, 2, 0, 0, 0), 1, _spans(4, 0)),
        ProfileRow("7g.40gb", 0, 7, 40320, 98, (7, 5, 0, 1, 1), 1, _spans(8, 0)),
    ),
)
A30 = GpuRow(
    "NVIDIA A30",
    24576,
    56,
    4,
    4,
    (
        ProfileRow("1g.6gb", 14, 1, 5952, 14, (1, 1, 0, 0, 0), 4, _spans(1, 0, 1, 2, 3)),
        ProfileRow("1g.6gb+me", 21, 1, 5952, 14, (1, 1, 0, 1, 1), 1, _spans(1, 0, 1, 2, 3)),
        ProfileRow("2g.12gb", 5, 2, 11968, 28, (2, 2, 0, 0, 0), 2, _spans(2, 0, 2)),
        ProfileRow("2g.12gb+me", 6, 2, 11968, 28, (2, 2, 0, 1, 1), 1, _spans(2, 0, 2)),
        ProfileRow("4g.24gb", 0, 4, 24000, 56, (4, 4, 0, 1, 1), 1, _spans(4, 0)),
    ),
)
H100_1G_10GB = ProfileRow("1g.10gb", 19, 1, 9984, 16, (1, 1, 0, 1, 0), 7, _spans(1, 0, 1, 2, 3, 4, 5, 6))
"""Of an H100 with 80 GB, which is in no world: the one name above that means more elsewhere."""
MPS_CLIENTS_MAX = 48
"""Clients that one MPS server serves (NVIDIA MPS guide, Volta and later); on an instance its part of them."""
A100_WITHOUT_MIG = GpuRow("NVIDIA A100-PCIE-40GB", 40960, 108, 8, 7, A100.profiles)
"""The same silicon with MIG mode off: only given whole."""


def overlap(one: Span, other: Span) -> bool:
    """Whether two spans share a memory slice."""
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


def fits_in(row: GpuRow, held: list[tuple[str, Span]], profile: ProfileRow, span: Span) -> bool:
    """Whether an instance of `profile` may be at `span` beside those `held` (profile name and span each)."""
    if span not in profile.placements or any(overlap(span, other) for _, other in held):
        return False
    rows = [profile, *(found for name, _ in held if (found := row.profile(name)) is not None)]
    engines = [sum(used) for used in zip(*(found.engines for found in rows), strict=True)]
    if any(used > budget for used, budget in zip(engines, row.budget, strict=True)):
        return False
    if sum(found.name == profile.name for found in rows) > profile.max_instances:
        return False
    return sum(found.compute_slices for found in rows) <= row.compute_slices


def at_least(row: GpuRow, profile: ProfileRow, name: str) -> bool:
    """Whether a profile has at least what one of that name has there, or has on any model (docs/moving.md)."""
    here = row.profile(name)
    anywhere = [*A100.profiles, *A30.profiles, H100_1G_10GB]
    meant = [here] if here is not None else [each for each in anywhere if each.name == name]
    return bool(meant) and all(
        profile.memory_mib >= each.memory_mib
        and profile.multiprocessors >= each.multiprocessors
        and all(has >= needs for has, needs in zip(profile.engines, each.engines, strict=True))
        for each in meant
    )
