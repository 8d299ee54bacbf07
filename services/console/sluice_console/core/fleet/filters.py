"""
The words that pick slices, on the page and in commands: `team:research node:gpu-1 is:idle train`. All must hold.

The page gets the parsed terms and applies them to its rows; `filter.js` has the same rules as this module.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from sluice_console.core.documents import GpuDocument, PodDocument
from sluice_console.core.fleet.nodes import FleetNodeDocument
from sluice_console.core.fleet.usage import UsageDocument

Key = Literal["", "team", "node", "model", "fits", "is"]
Subject = Literal["gpus", "nodes", "pods", "slices"]
ALIASES: Mapping[str, Key] = {"namespace": "team", "ns": "team"}
KEYS: tuple[Key, ...] = get_args(Key)[1:]
OF_SLICES = ("idle", "waiting", "changing", "foreign", "quarantined")
OF_GPUS = ("room", "empty", "trouble", "stale", "cordoned")
UUID_BEGINNING = len("GPU-1a2b")
WORDS_MAX = 16
WORD_LENGTH_MAX = 200
WITHOUT_SLICE = frozenset({"requested", "waiting", "making"})
_CHANGING = frozenset({"making", "ending"})
_NO_SLOT = frozenset({"free", "unusable"})
_OUT_OF_SERVICE = frozenset({"stale", "not open", "removed"})
_NO_NEW_PODS = _OUT_OF_SERVICE | {"cordoned", "draining"}
_ABOUT: Mapping[Subject, frozenset[str]] = {
    "gpus": frozenset({"team", "node", "model", "fits", *OF_SLICES, *OF_GPUS} - {"waiting"}),
    "nodes": frozenset({"team", "node", "model", "fits", *OF_SLICES, *OF_GPUS} - {"waiting"}),
    "pods": frozenset({"team", "node", "model", "waiting", "changing", "idle"}),
    "slices": frozenset({"team", "node", "model", "idle"}),
}
"""Keys and states that say something of each subject."""


def states_of(subject: Subject) -> tuple[str, ...]:
    """The values of `is:` that say something of it."""
    return tuple(state for state in (*OF_SLICES, *OF_GPUS) if state in _ABOUT[subject])


class FilterError(ValueError):
    """A word is no filter. The message names the word and what would be right."""


class Term(msgspec.Struct, frozen=True, omit_defaults=True):
    """One word: `key` is empty for text that is looked for anywhere. `value` is in lower case."""

    key: Key
    value: str
    negated: bool = False

    @property
    def name(self) -> str:
        """The key, or the state of `is:`; empty for text."""
        return self.value if self.key == "is" else self.key

    def is_like(self, text: str) -> bool:
        """Whether a name is the value, in which `*` stands for anything."""
        pattern = ".*".join(map(re.escape, self.value.split("*")))
        return re.fullmatch(pattern, text.lower()) is not None


def parse_filter(text: str) -> tuple[Term, ...]:
    """The terms of a filter. Raises FilterError."""
    words = text.split()
    if len(words) > WORDS_MAX:
        raise FilterError(f"a filter has at most {WORDS_MAX} words, not {len(words)}")
    return tuple(_term(word) for word in words)


def _term(word: str) -> Term:
    if len(word) > WORD_LENGTH_MAX:
        raise FilterError(f"{word[:20]}...: a word has at most {WORD_LENGTH_MAX} characters")
    negated = word.startswith("-") and len(word) > 1
    name, colon, value = word.removeprefix("-" if negated else "").partition(":")
    if not colon:
        return Term("", name.lower(), negated)
    key = ALIASES.get(name.lower(), name.lower())
    if key not in KEYS:
        names = ", ".join(f"{each}:" for each in KEYS)
        raise FilterError(f"{word}: must begin with one of {names}, or be text without a colon")
    if not value:
        raise FilterError(f"{word}: needs a value after the colon, such as {_EXAMPLES[key]}")
    if key == "is" and value.lower() not in (*OF_SLICES, *OF_GPUS):
        raise FilterError(f"{word}: must be is: and one of {', '.join((*OF_SLICES, *OF_GPUS))}")
    return Term(key, value.lower(), negated)


_EXAMPLES: Mapping[str, str] = {
    "team": "team:research",
    "node": "node:gpu-1 or node:gpu-*",
    "model": "model:a100",
    "fits": "fits:3g.40gb or fits:3g",
    "is": "is:idle",
}


def fits(value: str, creatable: Mapping[str, int]) -> bool:
    """Whether such an instance can be made now: by profile, or by its compute slices alone (`3g`)."""
    return any(
        count > 0 and (profile.lower() == value or profile.lower().startswith(f"{value}."))
        for profile, count in creatable.items()
    )


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Terms that must all hold. `idle`: requests with a slice that has been idle for long, if asked for."""

    terms: tuple[Term, ...] = ()
    idle: frozenset[str] = frozenset()

    @property
    def needs_use(self) -> bool:
        """Whether agents have to be asked for the usage of slices."""
        return any(term.name == "idle" for term in self.terms)

    def check(self, subject: Subject) -> None:
        """Raise FilterError for a term that says nothing of this subject."""
        for term in self.terms:
            if term.name and term.name not in _ABOUT[subject]:
                word = f"{term.key}:{term.value}"
                others = [
                    f"`sluice {'usage' if each == 'slices' else each}`" for each in _ABOUT if term.name in _ABOUT[each]
                ]
                raise FilterError(f"{word}: says nothing of {subject}; it is for {' and '.join(others)}")

    def lit(self, gpu: GpuDocument, node: FleetNodeDocument | None, warnings: Sequence[str]) -> set[str] | None:
        """The slots that are meant, as `START` or `START/REQUEST` of a share; None if the GPU is not meant.

        Without a term about slices, all of them."""
        slots = dict(_slots(gpu))
        of_slices = []
        text = _gpu_text(gpu, node)
        for term in self.terms:
            if term.key == "team" or term.name in OF_SLICES:
                of_slices.append(term)
            elif term.key == "" and (term.negated or not _is_in(term.value, text, gpu.uuid)):
                if _is_in(term.value, text, gpu.uuid):
                    return None
                of_slices.append(term)
            elif term.key and _holds_of_gpu(term, gpu, node, warnings) is term.negated:
                return None
        found = {name for name, slot in slots.items() if all(slot.holds(term, self.idle) for term in of_slices)}
        return None if of_slices and not found else found

    def picks_pod(self, pod: PodDocument, models: Collection[str]) -> bool:
        """Whether a request is meant; terms about GPUs do not matter. `models`: of its devices."""
        text = f"{pod.namespace}/{pod.name} {pod.request} {pod.node} {pod.state} {pod.message}".lower()
        holds: dict[str, Callable[[Term], bool]] = {
            "": lambda term: term.value in text,
            "team": lambda term: term.is_like(pod.namespace),
            "node": lambda term: term.is_like(pod.node),
            "model": lambda term: any(term.value in model.lower() for model in models),
            "waiting": lambda _: pod.state in WITHOUT_SLICE,
            "changing": lambda _: pod.state in _CHANGING,
            "idle": lambda _: pod.request in self.idle,
        }
        return all(holds[term.name](term) is not term.negated for term in self.terms if term.name in holds)

    def picks_slice(self, each: UsageDocument, model: str) -> bool:
        """Whether a slice of `sluice usage` is meant."""
        text = f"{each.owner} {each.request} {each.node} {each.profile or ''} {_digits(each.device)} {model}".lower()
        holds: dict[str, Callable[[Term], bool]] = {
            "": lambda term: _is_in(term.value, text, each.device),
            "team": lambda term: term.is_like(each.owner.partition("/")[0]),
            "node": lambda term: term.is_like(each.node),
            "model": lambda term: term.value in model.lower(),
            "idle": lambda _: each.request in self.idle,
        }
        return all(holds[term.name](term) is not term.negated for term in self.terms if term.name in holds)

    def picks_bare_node(self, node: FleetNodeDocument) -> bool:
        """Whether a node without GPUs is meant: by its name or state."""
        text = f"{node.node} {node.state} {node.why}".lower()
        return all(
            (term.is_like(node.node) if term.key == "node" else term.key == "" and term.value in text)
            is not term.negated
            for term in self.terms
        )


EVERYTHING = FleetFilter()


@dataclass(frozen=True, slots=True)
class _Slot:
    owner: str
    request: str
    states: frozenset[str]
    text: str

    def holds(self, term: Term, idle: Collection[str]) -> bool:
        if term.key == "":
            found = term.value in self.text
        elif term.key == "team":
            found = term.is_like(self.owner.partition("/")[0])
        elif term.value == "idle":
            found = self.request in idle
        else:
            found = term.value in self.states
        return found is not term.negated


def _slots(gpu: GpuDocument) -> Iterable[tuple[str, _Slot]]:
    for place in gpu.instances:
        if place.state in _NO_SLOT:
            continue
        quarantined = {"quarantined"} if place.out_of_use or place.state == "quarantined" else set()
        tenants = [(f"{place.start}/{each.request}", each.owner, each.request, each.state) for each in place.tenants]
        for name, owner, request, state in tenants or [(f"{place.start}", place.owner, place.request, place.state)]:
            states = frozenset({state, *quarantined, *(("changing",) if state in _CHANGING else ())})
            yield name, _Slot(owner, request, states, f"{owner} {request} {place.profile} {state}".lower())


def _gpu_text(gpu: GpuDocument, node: FleetNodeDocument | None) -> str:
    of_node = [node.state, node.why] if node is not None else []
    return " ".join((gpu.node, _digits(gpu.uuid), gpu.model, *of_node)).lower()


def _digits(uuid: str) -> str:
    return uuid.removeprefix("GPU-")


def _is_in(value: str, text: str, uuid: str) -> bool:
    """Whether a text is meant: `gpu-2` is a name, and no UUID that begins with 2."""
    return value in text or (len(value) >= UUID_BEGINNING and value in uuid.lower())


def _holds_of_gpu(term: Term, gpu: GpuDocument, node: FleetNodeDocument | None, warnings: Sequence[str]) -> bool:
    state = node.state if node is not None else "stale" if gpu.stale else "open"
    usable = gpu.healthy and not gpu.cordoned and state not in _NO_NEW_PODS
    match term.name:
        case "node":
            return term.is_like(gpu.node)
        case "model":
            return term.value in gpu.model.lower()
        case "fits":
            return usable and fits(term.value, gpu.creatable)
        case "room":
            free = any(gpu.creatable.values()) if gpu.mig_enabled else gpu.allocated_fraction < 1
            return usable and free
        case "empty":
            return all(place.state in _NO_SLOT for place in gpu.instances)
        case "stale":
            return state == "stale"
        case "cordoned":
            return gpu.cordoned or state in {"cordoned", "draining"}
        case _:
            ill = any(
                place.out_of_use
                or place.state == "quarantined"
                or (place.daemon is not None and place.daemon.state in {"fault", "down"})
                for place in gpu.instances
            )
            return ill or not gpu.healthy or state in _OUT_OF_SERVICE or bool(warnings)
