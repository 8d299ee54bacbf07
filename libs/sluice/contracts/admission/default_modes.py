"""
Apply a namespace's default mode to containers that name none, and store it in the request, where it stays visible.

A default never causes a refusal: where it does not fit a container's request, the container keeps the mode that it
would have had.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sluice.contracts.admission.stored_request import ResolvedRequest, StoredRequest, parse_stored
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits
from sluice.contracts.request_syntax.keys import HAMI, SLUICE, VOLCANO, VgpuNames
from sluice.contracts.request_syntax.sluice_keys import CONTAINER_KEYS

_VGPU_MODES = {"exclusive": "mig", "mps": "hami-core", "fractional": "hami-core"}
"""HAMi's names for our modes; `auto` has none, as HAMi means it by default."""


def with_default_mode(
    stored: StoredRequest, asked: ResolvedRequest, spec: Mapping[str, Any], limits: RequestLimits, mode: str
) -> tuple[StoredRequest, ResolvedRequest]:
    """The request with `mode` for containers that name none, where nothing else changes by it."""
    if not mode:
        return stored, asked
    for added in _additions(stored, asked, mode):
        tried = msgspec.structs.replace(stored, annotations=stored.annotations | added)
        understood = parse_stored(tried, spec, limits)
        if not isinstance(understood, Refusal):
            stored, asked = tried, understood
    return stored, asked


def _additions(stored: StoredRequest, asked: ResolvedRequest, mode: str) -> Iterator[dict[str, str]]:
    """The annotations to add, in groups: an init container follows the one whose devices it uses."""
    for claim in asked.pod.claims:
        group = (claim.container, *(init for init, app in asked.served_by.items() if app == claim.container))
        if all(_in_our_words_without_mode(stored, name) for name in group):
            yield {f"{name}.{SLUICE}/mode": mode for name in group}
    for names in (HAMI, VOLCANO):
        if mode in _VGPU_MODES and names.mode not in stored.annotations and _speaks(stored, names):
            yield {names.mode: _VGPU_MODES[mode]}


def _in_our_words_without_mode(stored: StoredRequest, container: str) -> bool:
    own = {key for key in CONTAINER_KEYS if f"{container}.{SLUICE}/{key}" in stored.annotations}
    if container == stored.first:
        own |= {key for key in CONTAINER_KEYS if f"{SLUICE}/{key}" in stored.annotations}
    return bool(own) and "mode" not in own


def _speaks(stored: StoredRequest, names: VgpuNames) -> bool:
    return any(name in amounts for amounts in stored.resources.values() for name in names.resources)
