"""Commands that inspect the fleet and the history of pods."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from sluice_console.shell.cli_options import AsJson, Documented, Server, UsageError, form_of, named, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cyclopts.completion import CompletionContext

    from sluice_console.core.fleet.filters import FleetFilter, Subject
    from sluice_console.shell.inspect.look_up import StoryTeller
    from sluice_console.shell.inspect.views import FleetView
    from sluice_console.shell.output.answer import Answer
    from sluice_console.shell.output.formats import OutputFormat

Output = Annotated[
    Literal["wide", "json", "yaml"] | None,
    Parameter(name=["--output", "-o"], help="wide: one line per item, all columns; json, yaml: docs/json.md."),
]
SECONDS_MAX = 100 * 365 * 86400
"""A century: earlier dates cannot be represented, and no history is kept that long."""
OfNode = Annotated[
    str, Parameter(name="--node", completer=named("nodes"), help="Only what is on this node, as node:NAME.")
]
_WORDS = "Only what all these match: text, team:, node:, model:, fits:, is: (docs/cli.md)."


def _words(subject: "Subject") -> "Callable[[CompletionContext], list[str]]":
    def words(context: "CompletionContext") -> list[str]:
        from sluice_console.shell.live.names import live_words

        return live_words(subject, context)

    return words


GpuWords = Annotated[str, Parameter(help=_WORDS, completer=_words("gpus"))]
PodWords = Annotated[str, Parameter(help=_WORDS, completer=_words("pods"))]
SliceWords = Annotated[str, Parameter(help=_WORDS, completer=_words("slices"))]
PodName = Annotated[
    str,
    Parameter(
        help="A request id, a pod name, namespace/name, or a manifest file; without one, those that wait are listed.",
        show_default=False,
        completer=named("pods"),
    ),
]
Watch = Annotated[bool, Parameter(name=["--watch", "-w"], negative="", help="Stay and show every change.")]


def add_to(app: App) -> None:
    """Register the verbs."""
    app.command(gpus_command, name="gpus")
    app.command(nodes_command, name="nodes")
    app.command(pods_command, name="pods")
    app.command(top_command, name="top")
    app.command(usage_command, name="usage")
    app.command(report_command, name="report")
    app.command(explain_command, name="explain")
    app.command(trace_command, name="trace")
    app.command(events_command, name="events")


def gpus_command(
    *words: GpuWords,
    server: Server = None,
    json: AsJson = False,
    output: Output = None,
    watch: Watch = False,
    node: OfNode = "",
) -> int:
    """Show every GPU as a bar of memory slices: what is on it, whose it is, what still fits."""
    from sluice_console.shell.inspect.views import FleetView

    looked = FleetView("gpus", filter=_filter("gpus", words, node=node))
    return look_or_watch(looked, server, json=json, output=output, watch=watch)


def nodes_command(
    *words: GpuWords,
    server: Server = None,
    json: AsJson = False,
    output: Output = None,
    watch: Watch = False,
    idle: Annotated[bool, Parameter(negative="", help="Only idle nodes.")] = False,
    node: OfNode = "",
) -> int:
    """Show every node in a line: its state, what is free, and since when it is idle."""
    from sluice_console.shell.inspect.views import FleetView

    looked = FleetView("nodes", idle_only=idle, filter=_filter("nodes", words, node=node))
    return look_or_watch(looked, server, json=json, output=output, watch=watch)


def pods_command(
    *words: PodWords,
    server: Server = None,
    json: AsJson = False,
    output: Output = None,
    watch: Watch = False,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Include ended pods.")] = False,
    namespace: Annotated[
        str,
        Parameter(name=["--namespace", "-n"], completer=named("namespaces"), help="Only pods of this namespace."),
    ] = "",
    all_namespaces: Annotated[
        bool, Parameter(name=["--all-namespaces", "-A"], negative="", help="Pods of all namespaces, as without -n.")
    ] = False,
    node: OfNode = "",
    waiting: Annotated[bool, Parameter(negative="", help="Only pods without a slice yet.")] = False,
) -> int:
    """Show every pod that requested slices, and its state."""
    from sluice_console.shell.inspect.views import FleetView

    if ":" in namespace:  # of `-node:gpu-1`, which begins like -n
        raise UsageError(f"-n{namespace}: words that exclude come after `--`")
    namespace = "" if all_namespaces else namespace
    found = _filter("pods", words, node=node, namespace=namespace, waiting=waiting)
    looked = FleetView("pods", with_ended=all_, filter=found)
    return look_or_watch(looked, server, json=json, output=output, watch=watch)


def top_command(*words: GpuWords, server: Server = None) -> int:
    """Show the live map in the terminal; in a pipe, the present state once. q quits; the last line lists the keys."""
    from sluice_console.shell.inspect.top import top
    from sluice_console.shell.live.running_systems import server_url

    return run(top(server_url(server), _filter("top", words)))


def usage_command(
    *words: SliceWords,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
    watch: Watch = False,
    idle: Annotated[bool, Parameter(negative="", help="Only slices that have been idle for long.")] = False,
    idle_s: Annotated[float | None, Parameter(help="Minimum idle time in seconds; an hour by default.")] = None,
) -> int:
    """Show what each slice is really used for, as its node's agent measures it; --idle lists unused ones."""
    from sluice_console.core.fleet.usage import IDLE_S
    from sluice_console.shell.inspect.views import FleetView

    if idle_s is not None:
        _check_seconds("--idle-s", idle_s)
    wanted_s = idle_s if idle_s is not None else IDLE_S if idle else None
    looked = FleetView("usage", idle_s=wanted_s, filter=_filter("slices", words))
    return look_or_watch(looked, server, json=json, output=output, watch=watch)


def report_command(
    *,
    server: Server = None,
    since: Annotated[str, Parameter(help="How far to look back: 90m, 24h, 7d, 4w.")] = "7d",
    by: Annotated[
        Literal["all", "namespace", "model", "node"], Parameter(help="One row for everything, or for each of these.")
    ] = "namespace",
    points: Annotated[bool, Parameter(negative="", help="With values over time, in JSON.")] = False,
    prices: Annotated[
        Path | None, Parameter(help="TOML file with a table [prices]: model = price per GPU hour; `*` for the others.")
    ] = None,
    csv: Annotated[bool, Parameter(negative="", help="Comma-separated values.")] = False,
    json: AsJson = False,
    output: Documented = None,
    watch: Watch = False,
) -> int:
    """Show GPU hours, use, waits and cost over time, by namespace, model or node (docs/report.md)."""
    from sluice_console.core.fleet.report import span_s
    from sluice_console.shell.inspect.report import report

    since_s = span_s(since)
    if since_s is None or since_s > SECONDS_MAX:
        most = f"{SECONDS_MAX // 86400}d"
        raise UsageError(
            f"--since {since}: must be a number above 0 with a unit, such as 90m, 24h, 7d or 4w, at most {most}"
        )
    form = form_of(output, json=json)
    if csv and form != "text":
        raise UsageError(f"--csv contradicts the output form {form}: name one of them")
    asked = partial(report, since_s=since_s, by=by, points=points, prices=prices, as_csv=csv)
    return answer_or_watch(asked, server, form, watch=watch)


def explain_command(
    request: PodName = "",
    *,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
    watch: Watch = False,
) -> int:
    """Tell the story of one pod: requested, waited for what, granted where, bound, released."""
    from sluice_console.shell.inspect.look_up import explain

    return _tell_or_watch(explain, request, server, form_of(output, json=json), watch=watch)


def trace_command(
    request: PodName = "",
    *,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
    watch: Watch = False,
) -> int:
    """Show one pod's timeline as a waterfall: how long each step took, from the bus's own records (docs/traces.md)."""
    from sluice_console.shell.inspect.trace import trace

    return _tell_or_watch(trace, request, server, form_of(output, json=json), watch=watch)


def events_command(
    *,
    server: Server = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Show new messages, too.")] = False,
    since_s: Annotated[float, Parameter(help="How far to look back, in seconds.")] = 900.0,
    json: AsJson = False,
    output: Documented = None,
) -> int:
    """Show what happened, one readable line per message; with --json one document per line."""
    from sluice_console.shell.inspect.look_up import events
    from sluice_console.shell.live.running_systems import server_url

    _check_seconds("--since-s", since_s)
    form = form_of(output, json=json)
    return run(events(server_url(server), follow=follow, since_s=since_s, form=form))


def _filter(
    subject: "Subject | Literal['top']",
    words: tuple[str, ...],
    *,
    node: str = "",
    namespace: str = "",
    waiting: bool = False,
) -> "FleetFilter":
    """The filter of words and options. Raises UsageError."""
    from sluice_console.core.fleet.filters import FilterError, FleetFilter, Term, parse_filter

    options = [Term("node", node.lower())] if node else []
    options += [Term("team", namespace.lower())] if namespace else []
    options += [Term("is", "waiting")] if waiting else []
    try:
        found = FleetFilter((*parse_filter(" ".join(words)), *options))
        if subject != "top":
            found.check(subject)
    except FilterError as error:
        raise UsageError(str(error)) from error
    return found


def _check_seconds(option: str, value_s: float) -> None:
    """Raises UsageError if the value is no usable length of time."""
    if not 0 <= value_s <= SECONDS_MAX:
        raise UsageError(f"{option} {value_s:g}: must be 0 or more seconds, and at most {SECONDS_MAX}")


def look_or_watch(
    looked: "FleetView", server: str | None, *, json: bool, output: Literal["wide", "json", "yaml"] | None, watch: bool
) -> int:
    """Show a view once, or until the user ends it."""
    from sluice_console.shell.inspect.look_up import look
    from sluice_console.shell.inspect.watch import watch as watched
    from sluice_console.shell.live.running_systems import server_url

    form = form_of(output, json=json)
    url = server_url(server)
    return run(watched(url, looked, form) if watch else look(url, looked, form))


def _tell_or_watch(tell: "StoryTeller", request: str, server: str | None, form: "OutputFormat", *, watch: bool) -> int:
    """Tell of a request once, or until the user ends it; of none, list those that there are."""
    from sluice_console.shell.inspect.look_up import choices, story_now
    from sluice_console.shell.inspect.watch import watch_story
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.output.answer import once

    if watch and not request:
        raise UsageError("--watch needs a pod; `sluice pods --waiting --watch` shows all that wait")
    url = server_url(server)
    if not request:
        return run(once(choices(url, tell.__name__, form), form))
    return run(watch_story(url, request, tell, form) if watch else once(story_now(url, request, tell), form))


def answer_or_watch(
    ask: "Callable[[str], Awaitable[Answer]]", server: str | None, form: "OutputFormat", *, watch: bool
) -> int:
    """Ask a service once, or until the user ends it."""
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.output.answer import once, repeated

    asked = partial(ask, server_url(server))
    return run(repeated(asked, form) if watch else once(asked(), form))
