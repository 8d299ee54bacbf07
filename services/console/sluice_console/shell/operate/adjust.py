"""`sluice adjust`: asks the allocator to resize the shares of one pod."""

from sluice_console.core.documents import PodDocument
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.operate.resize import AdjustError, SizeChange, document_of, lines_of, question_of
from sluice_console.shell.cli_options import UsageError
from sluice_console.shell.errors import CommandError, NotFoundError
from sluice_console.shell.inspect.look_up import matching
from sluice_console.shell.live.allocator_client import allocator
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import read_fleet_state
from sluice_console.shell.output.formats import OutputFormat, print_document
from sluice_console.shell.output.printer import write_lines

EXIT_REFUSED = 6
WITHIN_S = 15.0
"""Longer than the allocator needs to find that its ledger does not answer."""


async def adjust(url: str, wanted: str, container: str, sizes: SizeChange, *, dry_run: bool, form: OutputFormat) -> int:
    """Resize the shares of the pod that `wanted` names, or show the outcome. Returns the exit code.

    0: booked, or would be; 4: no such pod; 6: refused. Raises BusError, NotAskableError."""
    try:
        question_of("", container, sizes, dry_run=dry_run)
        async with connected(url) as bus:
            found = matching(list(pods_document(await read_fleet_state(bus), with_ended=False).pods), wanted)
            if len(found) != 1:
                raise _unclear(wanted, found)
            (pod,) = found
            question = question_of(pod.request, container, sizes, dry_run=dry_run)
            async with allocator(bus) as asked:
                answer = await asked.Adjust(question, timeout=WITHIN_S)
    except AdjustError as error:
        raise UsageError(str(error)) from error
    document = document_of(pod.request, f"{pod.namespace}/{pod.name}", answer, dry_run=dry_run)
    print_document(document, form, lambda document: write_lines(lines_of(document)))
    return EXIT_REFUSED if document.outcome == "refused" else 0


def _unclear(wanted: str, found: list[PodDocument]) -> CommandError:
    if not found:
        return NotFoundError(
            f"there is no live request {wanted!r}: not as an id, a pod name, namespace/name or file; "
            "`sluice pods` lists them"
        )
    several = ", ".join(f"{pod.namespace}/{pod.name} ({pod.request})" for pod in found)
    return UsageError(f"{wanted!r} means several: {several}")
