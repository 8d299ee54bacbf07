"""`sluice quota`: shows and sets what namespaces may have. The allocator reads the word and acts on it at once."""

import sys

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RunId
from sluice.contracts.messages import AnyMessage, QuotaSet, QuotaUnset
from sluice_console.core.documents import QuotasDocument
from sluice_console.core.quotas import QuotaError, Said, check_namespace, quota_word, quotas_document, unset_word
from sluice_console.core.visible import visible
from sluice_console.shell.connect import connected
from sluice_console.shell.forms import Form, is_for_programs, print_document
from sluice_console.shell.live import read_world
from sluice_console.shell.look import world_at
from sluice_console.shell.operator_word import say
from sluice_console.shell.present import console, show_quotas

EXIT_USAGE = 2
UNSET_TTL_S = 4 * 3600
"""How long the word that a quota is lifted stays: as long as other closing words (PROTOCOL W5)."""


async def list_quotas(url: str, namespace: str | None, *, form: Form) -> int:
    """`sluice quota list`."""
    return _show(quotas_document(await world_at(url)), namespace, form=form)


async def set_quota(
    url: str,
    namespace: str,
    *,
    total: Said,
    request: Said,
    guaranteed: Said,
    run: RunId,
    take_over: bool = False,
) -> int:
    """`sluice quota set`: what is named is changed, the rest stays. With `take_over` also what a file says."""
    if total == request == guaranteed == Said():
        sys.stderr.write("sluice quota set: name at least one limit, --gpus 4 for instance\n")
        return EXIT_USAGE

    def word_after(last: AnyMessage | None) -> QuotaSet:
        return quota_word(namespace, last, total=total, request=request, guaranteed=guaranteed, take_over=take_over)

    try:
        check_namespace(namespace)
        word_after(None)
        async with connected(url) as bus:
            await say(bus, subjects.quota(namespace), word_after, run=run)
            document = quotas_document(await read_world(bus))
    except QuotaError as error:
        sys.stderr.write(f"sluice quota set: {visible(str(error))}\n")
        return EXIT_USAGE
    return _show(document, namespace, form="text")


async def unset_quota(url: str, namespace: str, *, run: RunId, take_over: bool = False) -> int:
    """`sluice quota unset`: no limits and no guarantees any more."""

    def word_after(last: AnyMessage | None) -> QuotaUnset:
        return unset_word(namespace, last, take_over=take_over)

    try:
        check_namespace(namespace)
        async with connected(url) as bus:
            await say(bus, subjects.quota(namespace), word_after, run=run, ttl_s=UNSET_TTL_S)
    except QuotaError as error:
        sys.stderr.write(f"sluice quota unset: {visible(str(error))}\n")
        return EXIT_USAGE
    sys.stdout.write(f"namespace {namespace} has no limits\n")
    return 0


def _show(document: QuotasDocument, namespace: str | None, *, form: Form) -> int:
    if namespace is not None:
        document = QuotasDocument(quotas=tuple(each for each in document.quotas if each.namespace == namespace))
    if is_for_programs(form):
        print_document(document, form)
    else:
        show_quotas(console(), document, namespace)
    return 0
