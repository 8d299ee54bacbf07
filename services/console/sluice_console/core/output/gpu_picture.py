"""
GPUs as bars of memory slices, for a terminal. Says which characters stand where and which kind each run of them is;
colours are chosen by whoever prints it, and the picture must be readable without any.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from string import ascii_letters, digits

from sluice_console.core.documents import GpuDocument, GpusDocument, InstanceDocument, NodeDocument
from sluice_console.core.fleet.shared_devices import daemon_text, share_text
from sluice_console.core.output.sanitize import sanitize

LETTERS = ascii_letters[26:] + ascii_letters[:26] + digits
CELLS_MAX = 64
"""The width of a bar at most, in characters without its borders."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some characters and what they are: `plain`, `title`, `free`, `warn`, or `taken:<n>` (n picks a colour)."""

    text: str
    kind: str = "plain"


Line = tuple[Piece, ...]


def picture(document: GpusDocument, *, unicode: bool = True) -> list[Line]:
    """All GPUs by node, then the legend."""
    if not document.gpus and not document.nodes:
        return [(Piece("no GPU is known yet"),)]
    letters = _letters(document)
    lines: list[Line] = []
    nodes = {node.node: node for node in document.nodes}
    gpus_of = {name: list(gpus) for name, gpus in groupby(document.gpus, key=lambda gpu: gpu.node)}
    for name in sorted({*nodes, *gpus_of}):
        node, gpus = nodes.get(name), gpus_of.get(name, [])
        told = node or (gpus[0] if gpus else None)
        stale = f"  stale: {told.stale_message}" if told is not None and told.stale else ""
        lines.append((Piece(name, "title"), Piece(stale, "warn")))
        lines += [(Piece(f"  warning: {warning}", "warn"),) for warning in (node.warnings if node is not None else ())]
        lines += [] if gpus else [(Piece("  no GPU"),)]
        for gpu in gpus:
            lines += _gpu(gpu, letters, node, unicode=unicode)
    legend = _legend(document, letters)
    return [*lines, (Piece(""),), *legend] if legend else lines


def _letters(document: GpusDocument) -> dict[tuple[str, int, int], str]:
    taken = [(gpu.uuid, place.start, place.size) for gpu in document.gpus for place in gpu.instances]
    return {place: LETTERS[number % len(LETTERS)] for number, place in enumerate(taken)}


def _gpu(
    gpu: GpuDocument, letters: dict[tuple[str, int, int], str], node: NodeDocument | None, *, unicode: bool
) -> list[Line]:
    percent = f"{gpu.allocated_fraction:.0%}"
    shared = gpu.memory_mib > 0 and node is not None and any(mode != "exclusive" for mode in node.modes)
    whole = "MIG is off: allocated whole, or shared" if shared else "MIG is off: allocated whole only"
    room = room_text(gpu) if gpu.mig_enabled else whole
    room = f"layout is fixed, {gpu.creatable_total} free" if gpu.mig_enabled and gpu.fixed_layout else room
    head = f"  GPU {gpu.index}  {gpu.model.removeprefix('NVIDIA ')}  {percent} in use  {room}"
    word = "lost" if gpu.lost else "unhealthy"
    health = (Piece(f"  {word}: {gpu.health_message}", "warn"),) if not gpu.healthy else ()
    why = f": {gpu.cordon_why}" if gpu.cordon_why else ""
    cordon = (Piece(f"  cordoned{why}", "warn"),) if gpu.cordoned else ()
    lines: list[Line] = [
        (Piece(head), *health, *cordon),
        (Piece("    "), Piece("["), *_bar(gpu, letters, unicode=unicode), Piece("]")),
    ]
    has_room = gpu.fixed_layout or any(gpu.creatable.values())
    return [*lines, (Piece(f"    {fits_text(gpu)}"),)] if gpu.mig_enabled and has_room else lines


def compact_picture(document: GpusDocument, *, unicode: bool = True) -> list[Line]:
    """One line per GPU of a healthy fleet: node without its domain, index, bar, and what still fits."""
    letters = _letters(document)
    heads = {(gpu.node, gpu.index): f"{gpu.node.partition('.')[0]} GPU {gpu.index}" for gpu in document.gpus}
    width = max(map(len, heads.values()), default=0)
    return [
        (
            Piece(f"  {heads[gpu.node, gpu.index]:<{width}} ["),
            *_bar(gpu, letters, unicode=unicode),
            Piece(f"] {room_text(gpu)}"),
        )
        for gpu in sorted(document.gpus, key=lambda gpu: (gpu.node, gpu.index))
    ]


def room_text(gpu: GpuDocument) -> str:
    """The largest profile that still fits on a GPU, or that none does."""
    found = [(name, count) for name, count in gpu.creatable.items() if count]
    return f"largest that fits: {max(found, key=_small_first)[0]}" if found else "nothing more fits"


def fits_text(gpu: GpuDocument) -> str:
    """What still fits on a GPU, small first, or that nothing does; of a fixed layout, what can be had."""
    if not gpu.fixed_layout:
        return fits(gpu.creatable)
    free = fits(gpu.creatable).removeprefix("fits ")
    return f"available: {free}" if any(gpu.creatable.values()) else "nothing of its layout is free"


def fits(creatable: dict[str, int]) -> str:
    """The profiles that more instances fit of, small first, or that nothing does."""
    found = [(name, count) for name, count in creatable.items() if count]
    if not found:
        return "nothing more fits"
    return "fits " + ", ".join(f"{count}x{name}" for name, count in sorted(found, key=_small_first))


def _small_first(counted: tuple[str, int]) -> tuple[int, int, str]:
    name = counted[0]
    slices, _, memory = name.partition("g.")
    numbers = slices, memory.partition("gb")[0]
    return (*(int(number) if number.isdecimal() else 0 for number in numbers), name)  # type: ignore[return-value]


def _bar(gpu: GpuDocument, letters: dict[tuple[str, int, int], str], *, unicode: bool) -> list[Piece]:
    width = max(3, CELLS_MAX // max(1, gpu.memory_slices))
    pieces: list[Piece] = []
    at = 0
    for number, place in enumerate(sorted(gpu.instances, key=lambda place: place.start)):
        if place.start < at:
            continue  # a device in two minds (made and ordered again); the first says enough
        pieces += _free(place.start - at, width, unicode=unicode)
        letter = letters[gpu.uuid, place.start, place.size]
        pieces.append(Piece(_label(place, letter, place.size * width), f"taken:{LETTERS.index(letter)}"))
        at = place.start + place.size
        if at < gpu.memory_slices or number < len(gpu.instances) - 1:
            pieces.append(Piece("|"))
    return [*pieces, *_free(gpu.memory_slices - at, width, unicode=unicode, last=True)]


def _free(slices: int, width: int, *, unicode: bool, last: bool = False) -> list[Piece]:
    if slices <= 0:
        return []
    cells = "|".join(("·" if unicode else ".") * (width - 1) for _ in range(slices))
    return [Piece(cells, "free"), *([] if last else [Piece("|")])]


def _label(place: InstanceDocument, letter: str, width: int) -> str:
    """The letter, and as much of the pod's name and profile as fits. Exactly `width` - 1 characters."""
    profile = sanitize(place.profile)
    shared = f"{len(place.tenants)} share{'' if len(place.tenants) == 1 else 's'}" if place.tenants else ""
    name = shared or sanitize(place.owner).partition("/")[2] or place.state
    mark = "!" if place.out_of_use or _is_ill(place) else "" if place.state in {"ready", "free"} else "~"
    room = width - 1
    for text in (f"{letter}{mark} {name} {profile}", f"{letter}{mark} {name}", f"{letter}{mark}"):
        if len(text) <= room:
            return text.ljust(room)
    return f"{letter}{mark} {name}"[:room]


def _legend(document: GpusDocument, letters: dict[tuple[str, int, int], str]) -> list[Line]:
    lines: list[Line] = []
    for gpu in document.gpus:
        for place in gpu.instances:
            letter = letters[gpu.uuid, place.start, place.size]
            marks: list[str] = [] if place.state in {"ready", "free"} else [place.message or place.state]
            marks += ["out of use for new slices"] if place.out_of_use else []
            state = f"  ({', '.join(marks)})" if marks else ""
            what = f"{place.profile or f'{place.size} memory slices'} at {place.start} of GPU {gpu.index} on {gpu.node}"
            lines.append(
                (Piece(f"  {letter}", f"taken:{LETTERS.index(letter)}"), Piece(f"  {_whose(place)}  {what}{state}"))
            )
            if place.daemon is not None:
                kind = "warn" if _is_ill(place) else "plain"
                lines.append((Piece(f"       {daemon_text(place.daemon)}", kind),))
            lines += [(Piece(f"       {tenant.owner}  {share_text(tenant.share)}"),) for tenant in place.tenants]
    return lines


def _whose(place: InstanceDocument) -> str:
    if place.owner:
        return place.owner
    if place.tenants or place.daemon is not None:
        return f"shared by {len(place.tenants) or 'no pod'}"
    words = {
        "foreign": "foreign: never touched",
        "quarantined": "could not be freed",
        "free": "free: available as it is",
        "unusable": "not to be had",
    }
    return words.get(place.state, "ours, without a tenant now")


def _is_ill(place: InstanceDocument) -> bool:
    """Whether the daemon of a home takes no clients, for another reason than that it comes or goes."""
    return place.daemon is not None and place.daemon.state in {"fault", "down"}


def plain(lines: Iterable[Line]) -> str:
    """The picture as text without any colour."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)
