"""
The verbs of whoever runs the fleet: quotas, cordons and drains, nodes that are gone, streams.

They write words on the bus, with the operator's rights. What can be typed, no more: each verb has a module of its own.
"""

import secrets
import sys
from typing import Annotated

from cyclopts import App, Parameter

from sluice.contracts.ids import NodeName, RunId
from sluice_console.core.quotas import Said
from sluice_console.shell.cordon import Target, cordon, drain, uncordon
from sluice_console.shell.node_remove import remove_node
from sluice_console.shell.quota import list_quotas, set_quota, unset_quota
from sluice_console.shell.running import server_url
from sluice_console.shell.streams import ensure
from sluice_console.shell.typed import EXIT_USAGE, AsJson, Server, run

DRAIN_WAIT_MAX_S = 86400

streams_app = App(name="streams", help="The streams on the NATS server.")
node_app = App(name="node", help="The nodes of the fleet.")
quota_app = App(name="quota", help="What namespaces may have.")

TakeOver = Annotated[
    bool,
    Parameter(negative="", help="Also what a limits file says; it is said again where somebody still reads that file."),
]


def add_to(app: App) -> None:
    """Give the command its operators' verbs."""
    for group in (streams_app, node_app, quota_app):
        app.command(group)
    app.command(cordon_command, name="cordon")
    app.command(uncordon_command, name="uncordon")
    app.command(drain_command, name="drain")


@quota_app.command(name="list")
def quota_list_command(
    namespace: Annotated[str | None, Parameter(help="Only this one.")] = None,
    *,
    server: Server = None,
    json: AsJson = False,
) -> int:
    """What each namespace has, and may have."""
    return run(list_quotas(server_url(server), namespace, as_json=json))


@quota_app.command(name="set")
def quota_set_command(
    namespace: str,
    *,
    gpus: Annotated[str | None, Parameter(help="Devices: instances, shares and whole GPUs.")] = None,
    memory: Annotated[str | None, Parameter(help="64Gi, or MiB.")] = None,
    compute_slices: Annotated[str | None, Parameter(help="A whole A100 has 7.")] = None,
    pod_gpus: Annotated[str | None, Parameter(help="Of one pod.")] = None,
    pod_memory: Annotated[str | None, Parameter(help="Of one pod.")] = None,
    pod_compute_slices: Annotated[str | None, Parameter(help="Of one pod.")] = None,
    guaranteed_gpus: Annotated[str | None, Parameter(help="Not preempted for other namespaces.")] = None,
    guaranteed_memory: Annotated[str | None, Parameter(help="Likewise.")] = None,
    guaranteed_compute_slices: Annotated[str | None, Parameter(help="Likewise.")] = None,
    take_over: TakeOver = False,
    server: Server = None,
) -> int:
    """
    Limit a namespace: 0 blocks, `unlimited` takes a limit away, what is not named stays as it is.

    It holds at once for what is not granted yet; nothing that was granted is taken away.
    """
    total = Said(gpus, memory, compute_slices)
    request = Said(pod_gpus, pod_memory, pod_compute_slices)
    guaranteed = Said(guaranteed_gpus, guaranteed_memory, guaranteed_compute_slices)
    return run(
        set_quota(
            server_url(server),
            namespace,
            total=total,
            request=request,
            guaranteed=guaranteed,
            run=_run_id(),
            take_over=take_over,
        )
    )


@quota_app.command(name="unset")
def quota_unset_command(namespace: str, *, take_over: TakeOver = False, server: Server = None) -> int:
    """Take all limits and guarantees of a namespace away."""
    return run(unset_quota(server_url(server), namespace, run=_run_id(), take_over=take_over))


Gpus = Annotated[
    tuple[str, ...], Parameter(name="--gpu", negative="", help="Only this one, by UUID or index; may be said again.")
]
Why = Annotated[str, Parameter(help="Shown to everybody who waits because of it.")]


def cordon_command(
    node: str,
    *,
    gpu: Gpus = (),
    why: Why = "",
    take_over: TakeOver = False,
    server: Server = None,
    json: AsJson = False,
) -> int:
    """Give nothing new on a node, or on some of its GPUs. Who is there stays."""
    return run(cordon(server_url(server), Target(NodeName(node), gpu, why, take_over), as_json=json, run=_run_id()))


def uncordon_command(
    node: str, *, gpu: Gpus = (), take_over: TakeOver = False, server: Server = None, json: AsJson = False
) -> int:
    """Use a node, or some of its GPUs, again; whoever was to be evicted stays."""
    target = Target(NodeName(node), gpu, take_over=take_over)
    return run(uncordon(server_url(server), target, as_json=json, run=_run_id()))


def drain_command(
    node: str,
    *,
    gpu: Gpus = (),
    why: Why = "",
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")] = False,
    wait: Annotated[float | None, Parameter(help="Stay until everybody has left, at most so many seconds.")] = None,
    take_over: TakeOver = False,
    server: Server = None,
    json: AsJson = False,
) -> int:
    """
    Cordon, and evict whoever is there, as disruption budgets allow (docs/draining.md).

    1 when a person says no, 7 when somebody is still there after --wait.
    """
    if wait is not None and not 0 < wait <= DRAIN_WAIT_MAX_S:
        sys.stderr.write(f"sluice drain: --wait {wait:g}: more than 0 and at most {DRAIN_WAIT_MAX_S} seconds\n")
        return EXIT_USAGE
    if not yes and not sys.stdin.isatty():
        sys.stderr.write("sluice drain: nobody is there to be asked; say --yes\n")
        return EXIT_USAGE
    target = Target(NodeName(node), gpu, why, take_over)
    work = drain(server_url(server), target, yes=yes, wait_s=wait, as_json=json, run=_run_id(), ask=_ask)
    return run(work)


def _ask(question: str) -> bool:
    """Put a question to the person at the terminal; anything but y and yes is no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


@streams_app.command(name="ensure")
def streams_ensure_command(*, server: Server = None) -> int:
    """Declare the streams on a NATS server where they are missing."""
    return run(ensure(server_url(server)))


@node_app.command(name="remove")
def node_remove_command(
    node: Annotated[str, Parameter(help="The name of the node, as `sluice gpus` shows it.")],
    *,
    server: Server = None,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
) -> int:
    """
    Say that a node is gone for good: what is booked there is given up, and its pods lose their slices.

    A node whose agent answers is not removed. One that comes back is opened again with what it still has.
    """
    return run(remove_node(server_url(server), node, yes=yes, asked=sys.stdin.isatty(), run=_run_id()))


def _run_id() -> RunId:
    """A name for what this command writes."""
    return RunId(secrets.token_hex(8))
