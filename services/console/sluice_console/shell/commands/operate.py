"""
Commands of cluster operators: quotas, cordons, drains, removed nodes, streams.

They publish on the bus with the operator's rights. Only the command line is here: each verb has a module of its own.
"""

import secrets
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from sluice_console.shell.cli_options import AsJson, Documented, Server, UsageError, agreed, ask, form_of, named, run
from sluice_console.shell.commands.inspect import Watch, answer_or_watch, look_or_watch
from sluice_console.shell.commands.security import app as security_app

if TYPE_CHECKING:
    from sluice.contracts.ids import RunId

DRAIN_WAIT_MAX_S = 86400

streams_app = App(name="streams", help="Declare the streams on a NATS server.")
node_app = App(name="node", help="Remove nodes that are gone for good (`sluice nodes` lists all).")
quota_app = App(name="quota", help="Show, set and remove the quotas of namespaces (docs/quotas.md).")

Namespace = Annotated[str, Parameter(completer=named("namespaces"))]
TakeOver = Annotated[
    bool,
    Parameter(
        negative="",
        help="Change it even if a limits file set it; a pod-watcher that still reads the file sets it again.",
    ),
]


def add_to(app: App) -> None:
    """Register the operators' verbs."""
    for group in (streams_app, node_app, quota_app, security_app):
        app.command(group)
    app.command(cordon_command, name="cordon")
    app.command(uncordon_command, name="uncordon")
    app.command(drain_command, name="drain")
    app.command(consolidate_command, name="consolidate")
    app.command(release_quarantine_command, name="release-quarantine")


@quota_app.command(name="list")
def quota_list_command(
    namespace: Annotated[str | None, Parameter(help="Only this namespace.", completer=named("namespaces"))] = None,
    *,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
    watch: Watch = False,
) -> int:
    """Show each namespace's usage and quota."""
    from sluice_console.shell.inspect.views import FleetView

    return look_or_watch(FleetView("quotas", namespace=namespace), server, json=json, output=output, watch=watch)


@quota_app.command(name="set")
def quota_set_command(
    namespace: Namespace,
    *,
    gpus: Annotated[str | None, Parameter(help="Devices: instances, shares and whole GPUs.")] = None,
    memory: Annotated[str | None, Parameter(help="GPU memory: 64Gi, or MiB.")] = None,
    compute_slices: Annotated[str | None, Parameter(help="Compute slices; a whole A100 has 7.")] = None,
    pod_gpus: Annotated[str | None, Parameter(help="Limit of one pod.")] = None,
    pod_memory: Annotated[str | None, Parameter(help="Limit of one pod.")] = None,
    pod_compute_slices: Annotated[str | None, Parameter(help="Limit of one pod.")] = None,
    guaranteed_gpus: Annotated[str | None, Parameter(help="Guaranteed: not preempted for other namespaces.")] = None,
    guaranteed_memory: Annotated[str | None, Parameter(help="Likewise.")] = None,
    guaranteed_compute_slices: Annotated[str | None, Parameter(help="Likewise.")] = None,
    priority_max: Annotated[str | None, Parameter(help="A higher priority of its pods counts as this one.")] = None,
    take_over: TakeOver = False,
    server: Server = None,
) -> int:
    """Set the quota of a namespace: 0 blocks, `unlimited` removes a limit, limits that are not named stay.

    It applies at once to everything not granted yet; granted slices stay."""
    from sluice_console.core.operate.quotas import QuotaChange
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.operate.quota import set_quota

    total = QuotaChange(gpus, memory, compute_slices)
    request = QuotaChange(pod_gpus, pod_memory, pod_compute_slices)
    guaranteed = QuotaChange(guaranteed_gpus, guaranteed_memory, guaranteed_compute_slices)
    return run(
        set_quota(
            server_url(server),
            namespace,
            total=total,
            request=request,
            guaranteed=guaranteed,
            priority_max=priority_max,
            run=_run_id(),
            take_over=take_over,
        )
    )


@quota_app.command(name="unset")
def quota_unset_command(namespace: Namespace, *, take_over: TakeOver = False, server: Server = None) -> int:
    """Remove all limits and guarantees of a namespace."""
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.operate.quota import unset_quota

    return run(unset_quota(server_url(server), namespace, run=_run_id(), take_over=take_over))


Node = Annotated[str, Parameter(help="The name of the node, as `sluice nodes` shows it.", completer=named("nodes"))]
Gpus = Annotated[
    tuple[str, ...],
    Parameter(
        name="--gpu", negative="", completer=named("gpus"), help="Limit to this GPU (UUID or index); repeatable."
    ),
]
Why = Annotated[str, Parameter(help="Reason, shown to every pod that waits because of it.")]


def cordon_command(
    node: Node,
    *,
    gpu: Gpus = (),
    why: Why = "",
    take_over: TakeOver = False,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
) -> int:
    """Place nothing new on a node, or on some of its GPUs. Running pods stay."""
    from sluice.contracts.ids import NodeName
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.operate.cordon import CordonTarget, cordon

    return run(
        cordon(
            server_url(server),
            CordonTarget(NodeName(node), gpu, why, take_over),
            form=form_of(output, json=json),
            run=_run_id(),
        )
    )


def uncordon_command(
    node: Node,
    *,
    gpu: Gpus = (),
    take_over: TakeOver = False,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
) -> int:
    """Use a node, or some of its GPUs, again; pods that were to be evicted stay."""
    from sluice.contracts.ids import NodeName
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.operate.cordon import CordonTarget, uncordon

    target = CordonTarget(NodeName(node), gpu, take_over=take_over)
    return run(uncordon(server_url(server), target, form=form_of(output, json=json), run=_run_id()))


def drain_command(
    node: Node,
    *,
    gpu: Gpus = (),
    why: Why = "",
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")] = False,
    wait: Annotated[float | None, Parameter(help="Wait until all pods have left, at most so many seconds.")] = None,
    take_over: TakeOver = False,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
) -> int:
    """Cordon a node or GPUs, and evict the pods there as disruption budgets allow (docs/draining.md).

    Exit code 1: not confirmed; 7: pods are still there after --wait."""
    from sluice.contracts.ids import NodeName
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.operate.cordon import CordonTarget, drain

    if wait is not None and not 0 < wait <= DRAIN_WAIT_MAX_S:
        raise UsageError(f"--wait {wait:g}: more than 0 and at most {DRAIN_WAIT_MAX_S} seconds")
    target = CordonTarget(NodeName(node), gpu, why, take_over)
    asks, form = partial(agreed, yes=False), form_of(output, json=json)
    return run(drain(server_url(server), target, yes=yes, wait_s=wait, form=form, run=_run_id(), ask=asks))


def consolidate_command(
    *, server: Server = None, json: AsJson = False, output: Documented = None, watch: Watch = False
) -> int:
    """Name the nodes that would be empty if movable pods started elsewhere (docs/autoscaling.md). Moves nothing."""
    from sluice_console.shell.operate.consolidate import consolidate

    return answer_or_watch(consolidate, server, form_of(output, json=json), watch=watch)


def release_quarantine_command(
    allocation: Annotated[
        str,
        Parameter(
            help="The slice, as `sluice gpus -o json` and `sluice pods -o wide` name it.",
            completer=named("quarantined"),
        ),
    ],
    *,
    node: Annotated[
        str, Parameter(help="Node of the slice; by default looked up on the bus.", completer=named("nodes"))
    ] = "",
    data: Annotated[
        Path | None, Parameter(help="The agent's data directory; by default that of the running `sluice up`.")
    ] = None,
    ignore_holders: Annotated[
        bool, Parameter(negative="", help="Confirm that no process on its devices belongs to its pod.")
    ] = False,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")] = False,
    server: Server = None,
) -> int:
    """Retry to free a quarantined slice at once; run it on the node, as the user of its agent (docs/node.md).

    Exit code 0: retried; 1: refused by the agent, no agent here, or not confirmed; 4: no such slice."""
    from sluice_console.shell.operate.quarantine import QuarantineRelease, check, release

    wanted = QuarantineRelease(allocation=allocation, node=node, data_dir=data, ignore_holders=ignore_holders, yes=yes)
    check(wanted, is_terminal=sys.stdin.isatty(), ask=ask)
    return run(release(server, wanted))


@streams_app.command(name="ensure")
def streams_ensure_command(*, server: Server = None) -> int:
    """Declare the streams that a NATS server lacks."""
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.operate.streams import ensure

    return run(ensure(server_url(server)))


@streams_app.command(name="restart-when-storable")
def streams_restart_command(monitor: str, data: Path, pid_file: Path) -> int:
    """End the broker in the same pod once its full disk has room again; its kubelet restarts it.

    Parameters: HOST:PORT of its monitoring, its data folder, and the file with its process id."""
    from sluice_console.shell.operate.streams import end_when_there_is_room

    return run(end_when_there_is_room(monitor, data, pid_file))


@node_app.command(name="remove")
def node_remove_command(
    node: Node,
    *,
    server: Server = None,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")] = False,
) -> int:
    """Declare a node gone for good: its bookings are given up, and its pods lose their slices.

    A node whose agent answers is not removed. A node that comes back is adopted with the slices it still has."""
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.operate.node_remove import remove_node

    return run(remove_node(server_url(server), node, yes=yes, asked=sys.stdin.isatty(), run=_run_id()))


def _run_id() -> "RunId":
    """A name for the writes of this command."""
    from sluice.contracts.ids import RunId

    return RunId(secrets.token_hex(8))
