"""`sluice quota set`, `unset`: changes quotas of namespaces. The allocator applies them at once."""

import sys

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RunId
from sluice.contracts.messages import AnyMessage, QuotaSet, QuotaUnset
from sluice_console.core.documents import QuotasDocument
from sluice_console.core.operate.quotas import (
    QuotaChange,
    QuotaError,
    check_namespace,
    quota_word,
    quotas_document,
    unset_word,
)
from sluice_console.shell.cli_options import UsageError
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import read_fleet_state
from sluice_console.shell.operate.guarded_write import update_guarded
from sluice_console.shell.output.printer import console, show_quotas

UNSET_TTL_S = 4 * 3600
"""How long a `QuotaUnset` stays: as long as other final messages (PROTOCOL W5)."""


async def set_quota(
    url: str,
    namespace: str,
    *,
    total: QuotaChange,
    request: QuotaChange,
    guaranteed: QuotaChange,
    priority_max: str | None = None,
    run: RunId,
    take_over: bool = False,
) -> int:
    """`sluice quota set`: change the named limits. With `take_over` also those set by a limits file."""
    if total == request == guaranteed == QuotaChange() and priority_max is None:
        raise UsageError("name at least one limit, --gpus 4 for instance")

    def word_after(last: AnyMessage | None) -> QuotaSet:
        changes = {"total": total, "request": request, "guaranteed": guaranteed}
        return quota_word(namespace, last, **changes, priority_max=priority_max, take_over=take_over)

    try:
        check_namespace(namespace)
        word_after(None)
        async with connected(url) as bus:
            await update_guarded(bus, subjects.quota(namespace), word_after, run=run)
            document = quotas_document(await read_fleet_state(bus))
    except QuotaError as error:
        raise UsageError(str(error)) from error
    own = QuotasDocument(quotas=tuple(each for each in document.quotas if each.namespace == namespace))
    show_quotas(console(), own, namespace)
    return 0


async def unset_quota(url: str, namespace: str, *, run: RunId, take_over: bool = False) -> int:
    """`sluice quota unset`: remove limits and guarantees."""

    def word_after(last: AnyMessage | None) -> QuotaUnset:
        return unset_word(namespace, last, take_over=take_over)

    try:
        check_namespace(namespace)
        async with connected(url) as bus:
            await update_guarded(bus, subjects.quota(namespace), word_after, run=run, ttl_s=UNSET_TTL_S)
    except QuotaError as error:
        raise UsageError(str(error)) from error
    sys.stdout.write(f"namespace {namespace} has no limits\n")
    return 0
