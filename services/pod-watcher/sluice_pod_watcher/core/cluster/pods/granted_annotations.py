"""The annotations that give a pod its slice. One mirrors a grant and never is one: nothing is granted by it."""

import re
from collections.abc import Mapping, Sequence

from sluice.contracts.admission.stored_request import ResolvedRequest
from sluice.contracts.ids import AllocationId, NodeName, is_token
from sluice.contracts.kube import names
from sluice.contracts.messages import Bound, Claim, ContainerDevices, Held
from sluice.contracts.ticket_paths import pipe_directory_in, quota_library_in, quota_socket_in, ticket_of
from sluice_pod_watcher.core.cluster.pods.pod_view import PodView

NEUTRAL_THREAD_PERCENTAGE = "100"  # CUDA's default (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, MPS documentation)
_DEVICES = re.compile(r"[A-Za-z0-9-]{1,80}(?:,[A-Za-z0-9-]{1,80}){0,63}")
_SOCKET = re.compile(r"[a-z0-9]{1,64}\.sock")
_WORDS = re.compile(r"[A-Za-z0-9_.,=-]{0,1000}")


def annotations_of(bound: Bound, asked: ResolvedRequest, *, by_claim: bool = False) -> dict[str, str] | str:
    """Every granted annotation of a pod, with a neutral value where a mode does not use it; or why there is none. The
    binding is validated once more: a ticket named `.` would mount the whole volume, and a container without its value
    would start with that of its image. `by_claim`: the pod names only its allocation."""
    devices = {each.container: each for each in bound.containers}
    found = {names.GRANTED_ALLOCATION: str(bound.allocation)}
    served = {claim.container: claim.container for claim in asked.pod.claims} | dict(asked.served_by)
    for container, server in served.items():
        given = devices.get(server)
        if given is None:
            return f"the binding has no devices for the container {server!r}"
        if by_claim:
            continue
        if _DEVICES.fullmatch(given.visible_devices) is None:
            return f"the devices {given.visible_devices[:100]!r} of {server!r} are not a list of UUIDs"
        if not (_WORDS.fullmatch(given.driver_capabilities) and _WORDS.fullmatch(given.pinned_memory_limit)):
            return f"the capabilities or the memory limit of {server!r} are not valid in an environment variable"
        if given.quota_socket and _SOCKET.fullmatch(given.quota_socket.rpartition("/")[2]) is None:
            return f"the quota socket {given.quota_socket[-100:]!r} of {server!r} is not a valid name"
        if not names.is_ticket_name(ticket_of(bound.ticket, given)):
            return f"the ticket of {server!r} cannot be mounted: only a-z, 0-9 and '-' are valid"
        for key, text in _values(given, bound.ticket).items():
            found[names.granted(container, key)] = text
    return found


def allocation_of(bound: Bound, ways: Sequence[tuple[Claim, ...]]) -> dict[str, str] | str:
    """The granted annotation of a pod that asks by ResourceClaims of its own, in one of these ways; or why none."""
    granted = {each.container for each in bound.containers}
    if any(granted == {claim.container for claim in way} for way in ways):
        return {names.GRANTED_ALLOCATION: str(bound.allocation)}
    return f"the binding has devices for {', '.join(sorted(granted))}, which is no way to serve its ResourceClaims"


def _values(given: ContainerDevices, ticket: str) -> Mapping[str, str]:
    percentage = given.active_thread_percentage
    return {
        names.VISIBLE_DEVICES: given.visible_devices,
        names.TICKET: ticket_of(ticket, given),
        names.DRIVER_CAPABILITIES: given.driver_capabilities,
        names.MPS_PIPE_DIRECTORY: pipe_directory_in(given),
        names.ACTIVE_THREAD_PERCENTAGE: str(percentage) if percentage else NEUTRAL_THREAD_PERCENTAGE,
        names.PINNED_MEMORY_LIMIT: given.pinned_memory_limit,
        names.QUOTA_SOCKET: quota_socket_in(given),
        names.QUOTA_PRELOAD: quota_library_in(given),
    }


def held_by(view: PodView) -> Held | None:
    """The slice that a pod was bound to, by its own annotations: its gate is open, and it is (to be) on that node."""
    allocation = view.granted.get(names.GRANTED_ALLOCATION, "")
    if view.is_gated or not is_token(allocation) or not view.place:
        return None
    return Held(node=NodeName(view.place), allocation=AllocationId(allocation))
