"""`sluice simulate -f FILE`: predicts the outcome of a manifest's pods on the live fleet, which is not changed."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluice.contracts.admission import AdmissionConfig
from sluice.contracts.manifests import (
    ClusterAdmission,
    ManifestLimits,
    Namespace,
    PodManifest,
    asking,
    read_manifests,
    with_classes,
)
from sluice.contracts.pb import allocator_pb2 as pb
from sluice.contracts.pb.allocator_pb2_grpc import AllocatorServiceStub
from sluice.contracts.reasons import Refusal, shorten
from sluice.contracts.request_syntax import ANY_COUNT, RequestLimits
from sluice.contracts.rpc_limits import SIMULATED_TOGETHER_MAX
from sluice.contracts.toml_tables import parse_toml
from sluice_console.core.documents import SimulatedDocument, SimulatedPodDocument
from sluice_console.core.output.sanitize import sanitize
from sluice_console.core.simulate.admission import denied_pod, with_warnings
from sluice_console.core.simulate.answers import idle_pod, refused_pod, simulated_pod, with_group
from sluice_console.core.simulate.questions import question_of
from sluice_console.shell.cli_options import UsageError
from sluice_console.shell.live.allocator_client import allocator
from sluice_console.shell.live.connect import connected
from sluice_console.shell.output.formats import OutputFormat, print_document
from sluice_console.shell.output.printer import console, say, show_simulated

EXIT_WOULD_WAIT = 5
EXIT_WOULD_BE_REFUSED = 6
STANDARD_INPUT = "-"
LIMITS = ManifestLimits()


class NotReadableError(Exception):
    """An unreadable manifest. One sentence."""


async def simulate(url: str, files: Sequence[str], *, admission: Path | None = None, form: OutputFormat) -> int:
    """Simulate every pod of these files (`-` is standard input). Returns the exit code.

    `admission` is the settings file of the cluster's pod-watcher; without one the defaults apply. 0: all would be bound
    now, or request nothing; 5: one would wait; 6: one would be refused. Raises BusError."""
    try:
        if files.count(STANDARD_INPUT) > 1:
            raise NotReadableError("standard input can be read once: name - once")
        cluster = ClusterAdmission(_rules(admission)) if admission is not None else ClusterAdmission()
        texts = [(file, _text(file)) for file in files]
        # An unreadable text is reported before the allocator is asked.
        found = [pod for file, text in texts for pod in _manifests(file, text, ANY_COUNT, cluster)]
        cluster = cluster.with_namespaces(pod.defines for pod in found if isinstance(pod.defines, Namespace))
        async with connected(url) as bus, allocator(bus) as asked:
            limits = RequestLimits(await _devices_max(asked), cluster.config.driver_capabilities)
            named = [(file, pod) for file, text in texts for pod in _manifests(file, text, limits, cluster)]
            pods = zip((file for file, _ in named), with_classes(pod for _, pod in named), strict=True)
            judged = [(file, pod) for file, pod in pods if not pod.skipped and pod.defines is None]
            together = await _together(asked, [pod for _, pod in judged])
            answers = [await _answer(asked, file, pod, together.get(id(pod))) for file, pod in judged]
        document = SimulatedDocument(pods=tuple(answers))
    except NotReadableError as error:
        raise UsageError(str(error)) from error
    for _, pod in named:
        if pod.skipped:
            sys.stderr.write(f"{sanitize(pod.skipped)}\n")
    print_document(document, form, lambda document: show_simulated(console(), document))
    return exit_code(document)


def exit_code(document: SimulatedDocument) -> int:
    """The exit code of the worst answer."""
    answers = {pod.answer for pod in document.pods}
    if "refused" in answers:
        return EXIT_WOULD_BE_REFUSED
    return EXIT_WOULD_WAIT if "pending" in answers else 0


def _text(file: str) -> str:
    try:
        with sys.stdin.buffer if file == STANDARD_INPUT else Path(file).open("rb") as opened:
            data = opened.read(LIMITS.file_bytes_max + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise NotReadableError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NotReadableError(f"{file} is not UTF-8 text: {error.reason}") from error
    if len(data) > LIMITS.file_bytes_max:
        raise NotReadableError(f"{file} is too large (allowed: at most {LIMITS.file_bytes_max} bytes)")
    return text


def _rules(path: Path) -> AdmissionConfig:
    """The admission settings in the table `[pod-watcher]`; the pod-watcher checks the others itself."""
    try:
        table = parse_toml(_text(str(path))).get("pod-watcher")
        if not isinstance(table, dict):
            raise NotReadableError(f"{path} has no table [pod-watcher]: it is the settings file of the pod-watcher")
        return msgspec.convert(table, AdmissionConfig)
    except (ValueError, msgspec.ValidationError) as error:
        raise NotReadableError(f"{path}: {shorten(str(error), 300)}") from error


def _manifests(file: str, text: str, limits: RequestLimits, cluster: ClusterAdmission) -> tuple[PodManifest, ...]:
    found = read_manifests(file, text, limits=LIMITS, asks=limits, cluster=cluster, by_claims=True)
    if isinstance(found, Refusal):
        raise NotReadableError(found.sentence())
    return found


async def _devices_max(asked: AllocatorServiceStub) -> int:
    """Maximum of devices per pod, as the allocator is configured: every answer has it."""
    about = await asked.Simulate(pb.SimulateRequest(containers=[pb.ContainerAsk(name="any")]))
    return about.devices_max or ANY_COUNT.max_gpus_per_node


async def _together(asked: AllocatorServiceStub, pods: Sequence[PodManifest]) -> dict[int, pb.SimulateResponse]:
    """The answers by the pod's identity: of a file's pods, one takes room from the next. Of an older allocator none."""
    asking = [pod for pod in pods if pod.ask is not None and pod.refusal is None and not pod.problems]
    if len(asking) < 2:
        return {}
    first, *others = (question_of(pod) for pod in asking[:SIMULATED_TOGETHER_MAX])
    first.next.extend(others)
    answer = await asked.Simulate(first)
    if len(asking) > SIMULATED_TOGETHER_MAX and answer.next:
        say([f"the pods after the first {SIMULATED_TOGETHER_MAX} are judged as if those were not there"])
    return {id(pod): each for pod, each in zip(asking, (answer, *answer.next), strict=False)} if answer.next else {}


async def _answer(
    asked: AllocatorServiceStub, file: str, pod: PodManifest, answer: pb.SimulateResponse | None
) -> SimulatedPodDocument:
    """The answer for one pod; `answer` beside the others, if the allocator gave one."""
    if pod.problems:
        return denied_pod(pod.namespace, pod.name, file, pod.problems)
    if pod.refusal is not None:
        return refused_pod(pod.namespace, pod.name, file, pod.refusal)
    if pod.ask is None:
        return with_warnings(idle_pod(pod.namespace, pod.name, file), pod.warnings)
    answer = answer or await asked.Simulate(question_of(pod))
    for claims in pod.alternatives:
        if answer.WhichOneof("outcome") == "bound":
            break
        other = await asked.Simulate(question_of(asking(pod, claims)))
        answer = other if other.WhichOneof("outcome") == "bound" else answer
    found = with_warnings(simulated_pod(pod.namespace, pod.name, file, answer), pod.warnings)
    return with_group(found, pod.ask.group) if pod.ask.group is not None else found
