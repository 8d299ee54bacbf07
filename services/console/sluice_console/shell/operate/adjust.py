"""`sluice adjust`: asks the allocator to resize the shares of one pod."""

import sys

from sluice_console.core.documents import PodDocument
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.operate.resize import AdjustError, SizeChange, document_of, lines_of, question_of
from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.inspect.look_up import EXIT_NOT_FOUND, matching
from sluice_console.shell.live.allocator_client import NotAskableError, allocator
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import read_fleet_state
from sluice_console.shell.output.formats import OutputFormat, is_for_programs, print_document

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 6
WITHIN_S = 15.0
"""Longer than the allocator needs to find that its ledger does not answer."""


async def adjust(url: str, wanted: str, container: str, sizes: SizeChange, *, dry_run: bool, form: OutputFormat) -> int:
    """Resize the shares of the pod that `wanted` names, or show the outcome. Returns the exit code.

    0: booked, or would be; 4: no such pod; 6: refused. Raises BusError."""
    try:
        question_of("", container, sizes, dry_run=dry_run)
        async with connected(url) as bus:
            found = matching(list(pods_document(await read_fleet_state(bus), with_ended=False).pods), wanted)
            if len(found) != 1:
                return _say_which(wanted, found)
            (pod,) = found
            question = question_of(pod.request, container, sizes, dry_run=dry_run)
            async with allocator(bus) as asked:
                answer = await asked.Adjust(question, timeout=WITHIN_S)
    except AdjustError as error:
        sys.stderr.write(f"sluice adjust: {sanitize(str(error))}\n")
        return EXIT_USAGE
    except NotAskableError as error:
        sys.stderr.write(f"sluice adjust: {sanitize(str(error))}\n")
        return EXIT_FAILED
    document = document_of(pod.request, f"{pod.namespace}/{pod.name}", answer, dry_run=dry_run)
    if is_for_programs(form):
        print_document(document, form)
    else:
        sys.stdout.write("".join(f"{sanitize(line)}\n" for line in lines_of(document)))
    return EXIT_REFUSED if document.outcome == "refused" else 0


def _say_which(wanted: str, found: list[PodDocument]) -> int:
    if not found:
        sys.stderr.write(
            f"there is no live request {wanted!r}: not as an id, a pod name, namespace/name or file; "
            "`sluice pods` lists them\n"
        )
        return EXIT_NOT_FOUND
    several = ", ".join(f"{pod.namespace}/{pod.name} ({pod.request})" for pod in found)
    sys.stderr.write(f"sluice adjust: {wanted!r} means several: {sanitize(several)}\n")
    return EXIT_USAGE
