"""Was a request given what it asked for, or is there nothing? Tries every place of every node: for small fleets."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from judges.hosts import why_not_on
from judges.placements import (
    BoardTruth,
    HomeTruth,
    NodeTruth,
    Truth,
    is_to_be_had,
    largest_of,
    profile_of,
    size_of,
    slices,
    span_of,
    taken_from_us,
    why_not_together,
    width,
)
from judges.pods import why_not_with

from sluice.contracts.messages import Claim, DeviceGrant, GpuReport, Share
from sluice_allocator.core.placement import PlaceRequest

MODES_OF_SHARES = ("mps", "fractional")
WHOLE = "whole GPU"


@dataclass(frozen=True, slots=True)
class Chooser:
    """The rules what serves a claim; `geometries`: profiles for `known_geometries`, by part of the product name."""

    truth: Truth
    geometries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    avoid: frozenset[str] = frozenset()

    # -- one device ------------------------------------------------------------------------------------------------

    def profile_for(self, gpu: GpuReport, claim: Claim) -> str | None:
        """The smallest profile that is enough; `WHOLE`; or nothing."""
        all_of_it = claim.sm_percentage in {None, 100} and claim.memory_percentage in {None, 100}
        whole = all_of_it and claim.profile is None and claim.sm_count is None and claim.memory_mib is None
        if not gpu.mig_enabled:
            return WHOLE if whole else None
        if not gpu.profiles:
            return None
        top = largest_of(gpu)
        there = {profile.name for profile in gpu.profiles}
        if gpu.fixed_layout:
            there = {each.profile for each in gpu.instances}
        if whole:
            return top.name if top.name in there else None
        enough = [
            profile
            for profile in gpu.profiles
            if profile.name in there
            and profile.memory_mib >= (claim.memory_mib or 0)
            and profile.multiprocessors >= (claim.sm_count or 0)
            and profile.multiprocessors * 100 >= (claim.sm_percentage or 0) * top.multiprocessors
            and span_of(profile) * 100 >= (claim.memory_percentage or 0) * span_of(top)
        ]
        if claim.profile is not None:
            return next((profile.name for profile in enough if profile.name == claim.profile), None)
        if claim.known_geometries:
            listed = next((names for part, names in self.geometries.items() if part in gpu.model), ())
            by_memory = sorted(
                (profile.memory_mib, profile.compute_slices, profile.name)
                for profile in enough
                if profile.name in listed
            )
            return by_memory[0][2] if by_memory else None
        by_slices = sorted(
            (each.compute_slices, each.memory_mib, each.name.count("+") + each.name.count("-"), each.name)
            for each in enough
        )
        return by_slices[0][3] if by_slices else None

    def share_for(self, gpu: GpuReport, claim: Claim, mode: str) -> Share | None:
        """The share that serves a claim with a size; percents are of what the GPU can give as a whole."""
        if gpu.mig_enabled and not gpu.profiles:
            return None
        memory_mib = largest_of(gpu).memory_mib if gpu.mig_enabled else gpu.memory_mib
        uid = claim.uid or 0
        asked = [claim.memory_mib or 0]
        percent = claim.memory_percentage
        if percent is None and claim.memory_mib is None:  # no memory is named: as much of it as of the SMs
            percent = claim.sm_partition or 100
        if percent is not None:  # what an instance of as many memory slices has is that part, too
            whole = span_of(largest_of(gpu)) if gpu.mig_enabled else 0
            enough = [each.memory_mib for each in gpu.profiles if whole and span_of(each) * 100 >= percent * whole]
            asked.append(max(1, min([memory_mib * percent // 100, *enough])))
        if mode == "mps":
            return Share(mode="mps", uid=uid, memory_mib=max(asked))
        return Share(
            mode="fractional",
            uid=uid,
            memory_mib=max(asked),
            sm_partition=claim.sm_partition or 100,
            quota_request_permille=claim.quota_request_permille,
            quota_limit_permille=claim.quota_limit_permille,
        )

    def part_of(self, gpu: GpuReport, claim: Claim, percent: int) -> Share | None:
        """The share of so many percent of a GPU."""
        if gpu.mig_enabled and not gpu.profiles:
            return None
        memory_mib = largest_of(gpu).memory_mib if gpu.mig_enabled else gpu.memory_mib
        uid = claim.uid or 0
        return Share(mode="fractional", uid=uid, memory_mib=memory_mib * percent // 100, sm_partition=percent)

    def wanted(self, node: NodeTruth, gpu: GpuReport, asking: PlaceRequest, claim: Claim) -> bool:
        """Whether the claim may be on this GPU at all, whatever is free there."""
        only, name = claim.only, gpu.model.casefold()
        return (
            node.may_give(gpu)
            and gpu.uuid not in self.avoid
            and (not only.models or any(part.casefold() in name for part in only.models))
            and not any(part.casefold() in name for part in only.not_models)
            and (not only.uuids or gpu.uuid in only.uuids)
            and gpu.uuid not in only.not_uuids
            and ("mutex" not in asking.gpu_policy or self.is_idle(gpu))
        )

    def is_idle(self, gpu: GpuReport) -> bool:
        """Whether nothing is on it, of ours or of others."""
        foreign, out = taken_from_us(gpu)
        return not self.truth.board(gpu.uuid).spans() and not foreign and not out

    # -- was it right ----------------------------------------------------------------------------------------------

    def wrong_with(self, asking: PlaceRequest, name: str, devices: tuple[DeviceGrant, ...]) -> list[str]:
        """Everything that is wrong with this answer, as sentences; nothing of it is booked yet."""
        node = self.truth.nodes.get(name)
        if node is None:
            return [f"there is no node {name}"]
        why = why_not_on(node, asking.host, [b.room for b in self.truth.bookings.values() if b.node == name])
        why = why or why_not_with(self.truth, name, asking)
        wrong = [f"{name}: {why}"] if why else []
        left = list(devices)
        for claim in asking.claims:
            mine = [grant for grant in left if grant.container == claim.container]
            left = [grant for grant in left if grant.container != claim.container]
            wrong += self._wrong_sizes(node, claim, mine)
            gpus = {gpu.uuid: gpu for gpu in node.snapshot.gpus}
            for grant in mine:
                if grant.gpu not in gpus:
                    wrong.append(f"{grant.gpu} is not on {name}")
                elif not self.wanted(node, gpus[grant.gpu], asking, claim):
                    wrong.append(f"{grant.gpu} may not be given to {claim}")
            numas = {gpus[grant.gpu].numa_node for grant in mine if grant.gpu in gpus}
            if claim.numa_bind and len(mine) > 1 and (len(numas) > 1 or None in numas):
                wrong.append(f"numa-bind, and NUMA nodes {numas}")
        wrong += [f"{grant} serves no claim" for grant in left]
        if asking.by_claim and not node.snapshot.kubelet_hands_over:
            wrong.append(f"the kubelet of {name} hands no claim over")
        for names in asking.same_gpu:
            used = {grant.gpu for grant in devices if grant.container in names}
            wrong += [f"{names} are on {sorted(used)}"] if len(used) > 1 else []
        return wrong or self._wrong_places(node, asking, devices)

    def _wrong_sizes(self, node: NodeTruth, claim: Claim, mine: list[DeviceGrant]) -> Iterator[str]:
        gpus = {gpu.uuid: gpu for gpu in node.snapshot.gpus}
        if any(grant.gpu not in gpus for grant in mine):
            return
        modes = {"exclusive" if grant.share is None else grant.share.mode for grant in mine}
        if len(modes) != 1 or not modes <= set(claim.modes) & set(node.snapshot.modes):
            yield f"modes {sorted(modes)} for {claim.modes} on a node of {node.snapshot.modes}"
            return
        shared = modes != {"exclusive"}
        if (shared or not all(gpus[g.gpu].mig_enabled for g in mine)) and len({g.gpu for g in mine}) != len(mine):
            yield f"one GPU given twice to {claim.container}"
        if claim.shares_percent is not None:
            given = sum(grant.share.sm_partition for grant in mine if grant.share is not None)
            if given != claim.shares_percent:
                yield f"{given} of {claim.shares_percent} percent"
        elif len(mine) != claim.gpus:
            yield f"{len(mine)} of {claim.gpus} devices"
        for grant in mine:
            yield from self._wrong_size(gpus[grant.gpu], claim, grant)

    def _wrong_size(self, gpu: GpuReport, claim: Claim, grant: DeviceGrant) -> Iterator[str]:
        if grant.share is None:
            expected = self.profile_for(gpu, claim)
            if (grant.profile or WHOLE) != expected:
                yield f"{grant.profile} of {gpu.model} for {claim}: expected {expected}"
        elif claim.shares_percent is not None:
            size = size_of(gpu, (grant.profile, grant.start, grant.size))
            if grant.share != self.part_of(gpu, claim, grant.share.sm_partition) or size.sms != size.gpu_sms:
                yield f"{grant.share} on {grant.profile} is no {grant.share.sm_partition} % of {gpu.model}"
        elif grant.share != self.share_for(gpu, claim, grant.share.mode):
            yield f"{grant.share} for {claim}: expected {self.share_for(gpu, claim, grant.share.mode)}"

    def _wrong_places(self, node: NodeTruth, asking: PlaceRequest, devices: tuple[DeviceGrant, ...]) -> list[str]:
        wrong = []
        for gpu in node.snapshot.gpus:
            mine = [grant for grant in devices if grant.gpu == gpu.uuid]
            if mine:
                board = self.truth.board(gpu.uuid)
                for grant in mine:
                    board.put(grant, asking.namespace)
                touched = [(grant.profile, grant.start, grant.size) for grant in mine]
                wrong += [f"{gpu.uuid}: {why}" for why in self.why_no_room(node, gpu, board, touched)]
        return wrong

    def why_no_room(self, node: NodeTruth, gpu: GpuReport, board: BoardTruth, touched: list) -> list[str]:
        """What is wrong with a GPU on which these spans were given something just now."""
        foreign, out = taken_from_us(gpu)
        known = [span for span in foreign if profile_of(gpu, str(span[0])) is not None]
        out = out.union(*(slices(start, size) for name, start, size in foreign if (name, start, size) not in known))
        why = why_not_together(gpu, [*board.spans(), *known])
        wrong = [why] if why else []
        wrong += [f"{span} is out of use" for span in touched if out & slices(span[1], span[2])]
        wrong += [f"{span} is not in the fixed layout" for span in touched if not is_to_be_had(gpu, span)]
        for span in touched:
            if span[0] is None and (span[1], span[2]) != (0, max(1, gpu.memory_slices)):
                wrong.append(f"{span} is not the whole GPU")
            if span in board.homes:
                wrong += self.truth.why_overfull(node, gpu, board.homes[span])
        return wrong

    # -- is there really nothing -----------------------------------------------------------------------------------

    def some_place(self, asking: PlaceRequest) -> str | None:
        """A node that could serve the whole request, with the modes; None when no node can."""
        for name, node in self.truth.nodes.items():
            rooms = [booking.room for booking in self.truth.bookings.values() if booking.node == name]
            if asking.by_claim and not node.snapshot.kubelet_hands_over:
                continue
            if why_not_on(node, asking.host, rooms) is None and why_not_with(self.truth, name, asking) is None:
                for modes in itertools.product(*(claim.modes for claim in asking.claims)):
                    if all(mode in node.snapshot.modes for mode in modes) and self._fits_on(node, asking, modes):
                        return f"{name} {modes}"
        return None

    def _fits_on(self, node: NodeTruth, asking: PlaceRequest, modes: tuple[str, ...]) -> bool:
        gpus = node.snapshot.gpus
        if asking.claims[0].shares_percent is not None:
            return self._splits_over(node, asking)
        units = [at for at, claim in enumerate(asking.claims) for _ in range(claim.gpus)]
        options = [
            [n for n, gpu in enumerate(gpus) if self.wanted(node, gpu, asking, asking.claims[unit])] for unit in units
        ]
        packed: dict[tuple[int, tuple[int, ...]], bool] = {}
        for chosen in itertools.product(*options):
            if not self._allowed_together(gpus, asking, modes, units, chosen):
                continue
            for number in sorted(set(chosen)):
                here = tuple(unit for unit, n in zip(units, chosen, strict=True) if n == number)
                if (number, here) not in packed:
                    board = self.truth.board(gpus[number].uuid)
                    packed[number, here] = self._packs(node, gpus[number], board, asking, modes, here)
                if not packed[number, here]:
                    break
            else:
                return True
        return False

    def _allowed_together(self, gpus, asking: PlaceRequest, modes, units, chosen) -> bool:
        for at, claim in enumerate(asking.claims):
            mine = [n for unit, n in zip(units, chosen, strict=True) if unit == at]
            if mine != sorted(mine):
                return False  # the same devices in another order
            if modes[at] in MODES_OF_SHARES and len(set(mine)) != len(mine):
                return False
            numas = {gpus[n].numa_node for n in mine}
            if claim.numa_bind and len(mine) > 1 and (len(numas) > 1 or None in numas):
                return False
        for names in asking.same_gpu:
            bound = {n for unit, n in zip(units, chosen, strict=True) if asking.claims[unit].container in names}
            if len(bound) > 1:
                return False
        return True

    def _packs(self, node: NodeTruth, gpu: GpuReport, board: BoardTruth, asking: PlaceRequest, modes, units) -> bool:
        """Whether one GPU has places for all these devices, in any order and any places."""
        if not units:
            return True
        claim, mode = asking.claims[units[0]], modes[units[0]]
        return any(
            self._packs(node, gpu, after, asking, modes, units[1:])
            for after in self._ways(node, gpu, board, asking, claim, mode)
        )

    def _ways(self, node: NodeTruth, gpu: GpuReport, board: BoardTruth, asking: PlaceRequest, claim: Claim, mode: str):
        if mode in MODES_OF_SHARES:
            share = self.share_for(gpu, claim, mode)
            yield from self._homes_for(node, gpu, board, asking.namespace, share) if share is not None else ()
            return
        name = self.profile_for(gpu, claim)
        if name == WHOLE:
            spans = [(None, 0, max(1, gpu.memory_slices))]
        else:
            profile = profile_of(gpu, name) if name is not None else None
            spans = [(name, place.start, place.size) for place in profile.placements] if profile is not None else []
        for span in spans:
            after = BoardTruth([*board.alone, span], board.homes)
            if not self.why_no_room(node, gpu, after, [span]):
                yield after

    def _homes_for(self, node: NodeTruth, gpu: GpuReport, board: BoardTruth, namespace: str, share: Share):
        if gpu.mig_enabled:
            plain = [profile for profile in gpu.profiles if "+" not in profile.name and "-" not in profile.name]
            new = [(each.name, place.start, place.size) for each in plain for place in each.placements]
        else:
            new = [(None, 0, max(1, gpu.memory_slices))]
        for span in dict.fromkeys([*board.homes, *new]):
            size = size_of(gpu, span)
            if share.memory_mib > size.memory_mib:
                continue
            before = board.homes.get(span, HomeTruth(span))
            together = [share, *(theirs for _, theirs in before.tenants)]
            side_by_side = sum(width(each, size) for each in together if each.mode == "fractional")
            if before.tenants and node.snapshot.time_quota and side_by_side > 100:
                continue  # lanes are not rearranged for a newcomer (docs/sharing.md)
            home = HomeTruth(span, [*before.tenants, ((namespace, share.uid), share)])
            after = BoardTruth(board.alone, {**board.homes, span: home})
            if not self.why_no_room(node, gpu, after, [span]):
                yield after

    def _splits_over(self, node: NodeTruth, asking: PlaceRequest) -> bool:
        """An amount over several GPUs: each gives at most what one share on it can be."""
        claim = asking.claims[0]
        rooms = [
            self._most_percent(node, gpu, asking) for gpu in node.snapshot.gpus if self.wanted(node, gpu, asking, claim)
        ]
        return sum(rooms) >= (claim.shares_percent or 0)

    def _most_percent(self, node: NodeTruth, gpu: GpuReport, asking: PlaceRequest) -> int:
        board = self.truth.board(gpu.uuid)
        for percent in range(100, 0, -1):
            share = self.part_of(gpu, asking.claims[0], percent)
            after = self._homes_for(node, gpu, board, asking.namespace, share) if share is not None else ()
            if any(size_of(gpu, span).sms == size_of(gpu, span).gpu_sms for each in after for span in each.homes):
                return percent
        return 0
