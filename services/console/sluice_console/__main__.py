"""
The `sluice` command: its verbs for users of a fleet, and how errors end.

`sluice_console.shell.commands.operate` has the verbs of operators. A command imports its modules when it is called:
importing all of them takes longer than most commands run.
"""

from sluice.runtime import sigint  # the first import, so that Ctrl-C ends the others quietly

# isort: split
import codecs
import errno
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from sluice.runtime.errors import ServiceError
from sluice.runtime.version import sluice_version
from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.cli_options import (
    EXIT_FAILED,
    EXIT_USAGE,
    AsJson,
    Documented,
    Server,
    UsageError,
    form_of,
    named,
    run,
)
from sluice_console.shell.commands import bench, completion, inspect, operate
from sluice_console.shell.commands import run as run_command
from sluice_console.shell.errors import CommandError
from sluice_console.shell.usage_errors import usage_text

app = App(
    name="sluice",
    help="GPU slices on demand. `sluice demo` shows it; `sluice up` runs it on this machine.",
    version=sluice_version,
)
inspect.add_to(app)
operate.add_to(app)
run_command.add_to(app)
bench.add_to(app)
completion.add_to(app)


@app.command(name="up")
def up_command(
    *,
    fleet: Annotated[
        Path | None,
        Parameter(help="TOML file of simulated nodes (examples/fleet.toml); by default this machine's own GPUs."),
    ] = None,
    pods: Annotated[Path, Parameter(help="The folder of Pod manifests to watch.")],
    data: Annotated[Path | None, Parameter(help="Data directory; a temporary one by default.")] = None,
    processes: Annotated[
        int | None,
        Parameter(help="Maximum number of processes for all node agents; by default one per core, at most 8."),
    ] = None,
    allocators: Annotated[int, Parameter(help="Number of allocators; one is active, the others stand by.")] = 1,
    closing_ttl_s: Annotated[int | None, Parameter(help="How long final messages stay on the bus, in seconds.")] = None,
    limits: Annotated[
        Path | None, Parameter(help="TOML file of quotas and cordoned nodes (docs/quotas.md); read again on change.")
    ] = None,
    web: Annotated[
        str, Parameter(help="Address of the web page, HOST:PORT; `off` serves none.", show_default=False)
    ] = "",
) -> int:
    """Run everything on this machine: broker, services, GPUs (simulated by --fleet), web page. Until Ctrl-C."""
    from sluice_console.shell.process.system import SystemOptions
    from sluice_console.shell.process.up import up

    for name, value in (("--processes", processes), ("--allocators", allocators), ("--closing-ttl-s", closing_ttl_s)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: must be at least 1")
    if fleet is None and data is None:
        raise UsageError("up needs --fleet FILE for simulated GPUs, or --data DIR for this machine's own")
    options = SystemOptions(fleet, pods, data, processes, allocators, closing_ttl_s, limits_file=limits)
    return run(up(options, page=web))


@app.command(name="demo")
def demo_command() -> int:
    """Show what Sluice does in half a minute: four simulated A100, real services, nothing left behind."""
    from sluice_console.shell.demo.demo import demo

    return run(demo())


@app.command(name="web")
def web_command(
    *,
    server: Annotated[
        str | None,
        Parameter(
            name=["--server", "--nats"],
            help="NATS URL; otherwise SLUICE_NATS_URL, otherwise the running `sluice up`.",
        ),
    ] = None,
    listen: Annotated[str, Parameter(help="Address to listen on, HOST:PORT; port 0 picks a free one.")] = "127.0.0.1:0",
    host: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="Host name of this server, besides localhost and IP addresses; repeatable."),
    ] = (),
) -> int:
    """Serve the live map of the fleet as a web page (docs/web.md), until Ctrl-C."""
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.web.serve import web

    return run(web(server_url(server), listen, host))


@app.command(name="simulate")
def simulate_command(
    *,
    file: Annotated[
        list[str] | None,
        Parameter(
            name=["--file", "-f"],
            negative="",
            allow_leading_hyphen=True,
            help="Manifest to try on the live fleet; - is standard input.",
        ),
    ] = None,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
    admission: Annotated[
        Path | None, Parameter(help="With -f: the settings file of the cluster's pod-watcher (docs/admission.md).")
    ] = None,
    fleet: Annotated[Path | None, Parameter(help="TOML file of the nodes (docs/simulate.md).")] = None,
    workload: Annotated[Path | None, Parameter(help="Arrivals and departures, one JSON object per line.")] = None,
    out: Annotated[Path | None, Parameter(help="Output file, one JSON object per line.")] = None,
    placement: Annotated[
        Path | None, Parameter(help="TOML file of pools, weights and limits (docs/policies.md).")
    ] = None,
    policy: Annotated[str | None, Parameter(help="Default policy: binpack, or node=spread,gpu=numa,binpack.")] = None,
    no_queue: Annotated[bool, Parameter(negative="", help="Refuse pods that do not fit now.")] = False,
    seed: Annotated[int, Parameter(help="Shuffle arrivals of equal time; 0 keeps the file's order.")] = 0,
) -> int:
    """Predict what happens to pods: a manifest on the live fleet (-f), or a workload on a fleet file.

    -f changes nothing. Exit code 0: all would be bound now; 5: one would wait; 6: one would be refused. --fleet,
    --workload and --out run the allocator's own code on virtual time, without a cluster."""
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.simulate.live import simulate
    from sluice_console.shell.simulate.offline import OfflineRun, become_simulation

    offline = (fleet, workload, out)
    if file is not None and all(each is None for each in (*offline, placement, policy)) and not no_queue and not seed:
        return run(simulate(server_url(server), file, admission=admission, form=form_of(output, json=json)))
    if (
        file is None
        and admission is None
        and form_of(output, json=json) == "text"
        and server is None
        and fleet is not None
        and workload is not None
        and out is not None
    ):
        become_simulation(OfflineRun(fleet, workload, out, placement, policy, queue=not no_queue, seed=seed))
    raise UsageError(
        "simulate needs either -f FILE [--admission FILE] [--server URL] [--json], or --fleet, --workload and --out"
    )


@app.command(name="doctor")
def doctor_command(
    *,
    server: Server = None,
    inventory: Annotated[str, Parameter(help="Address of the inventory (HOST:PORT), to check it too.")] = "",
    kubeconfig: Annotated[Path | None, Parameter(help="Check this cluster too; by default that of KUBECONFIG.")] = None,
    in_cluster: Annotated[bool, Parameter(negative="", help="Check the cluster that kubectl finds by itself.")] = False,
    no_bus: Annotated[bool, Parameter(negative="", help="Check the cluster only.")] = False,
    no_cluster: Annotated[
        bool, Parameter(negative="", help="Check the bus only, even when KUBECONFIG is set.")
    ] = False,
    json: AsJson = False,
    output: Documented = None,
) -> int:
    """Check that everything runs and is configured well; changes nothing.

    Exit code 0: nothing must be fixed; 1: something must; 2: something could not be checked."""
    from sluice_console.shell.doctor.doctor import DoctorOptions, doctor
    from sluice_console.shell.web.listen_address import NotAnAddressError, host_and_port

    if no_cluster and (kubeconfig is not None or in_cluster):
        raise UsageError("--no-cluster contradicts --kubeconfig and --in-cluster")
    if inventory and not inventory.startswith("unix:"):
        try:
            host_and_port(inventory)
        except NotAnAddressError as error:
            raise UsageError(f"--inventory {error}") from error
    look = DoctorOptions(
        server=server,
        bus=not no_bus,
        inventory=inventory,
        kubeconfig=kubeconfig,
        in_cluster=in_cluster,
        cluster=not no_cluster,
    )
    if no_bus and not look.at_cluster:
        raise UsageError("doctor has nothing to check: give --kubeconfig or --in-cluster, or leave out --no-bus")
    return run(doctor(look, form=form_of(output, json=json)))


@app.command(name="adjust")
def adjust_command(
    pod: Annotated[
        str, Parameter(help="A request id, a pod name, namespace/name, or a manifest file.", completer=named("pods"))
    ],
    *,
    container: Annotated[str, Parameter(help="Container that has the shares; required when several have some.")] = "",
    memory: Annotated[str | None, Parameter(help="Memory of each share: 8Gi, or MiB.")] = None,
    sm_partition: Annotated[str | None, Parameter(help="Percent of the GPU's SMs; fractional shares.")] = None,
    quota_request: Annotated[str | None, Parameter(help="Guaranteed fraction of time, 0.5; fractional shares.")] = None,
    quota_limit: Annotated[str | None, Parameter(help="Maximum fraction of time; fractional shares.")] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Show the outcome without applying it.")] = False,
    server: Server = None,
    json: AsJson = False,
    output: Documented = None,
) -> int:
    """Resize the shares of a running pod (docs/adjust.md). Sizes that are not named stay.

    Exit code 0: booked, or would be; 4: no such pod; 6: refused, with the reason."""
    from sluice_console.core.operate.resize import SizeChange
    from sluice_console.shell.live.running_systems import server_url
    from sluice_console.shell.operate.adjust import adjust

    sizes = SizeChange(memory, sm_partition, quota_request, quota_limit)
    return run(adjust(server_url(server), pod, container, sizes, dry_run=dry_run, form=form_of(output, json=json)))


@app.command(name="version")
def version_command() -> int:
    """The version of this command."""
    sys.stdout.write(f"sluice {sluice_version()}\n")
    return 0


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of the `sluice` script. Runs `words`, by default the process's arguments, and ends the process."""
    _open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may lack characters that names and messages have
        sys.stdout.reconfigure(errors=ESCAPED)
    code = _code_of(words)
    try:
        sys.stdout.flush()  # here, where a failure can be reported
    except OSError as error:
        code = _unwritten(error, code)
    sys.exit(code)


def _open_what_is_closed() -> None:
    """Open /dev/null for each standard stream that the parent closed, so that no file of ours gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for the life of the process


def _code_of(words: Sequence[str] | None) -> int | str | None:
    """The exit code of the command."""
    try:
        sigint.restore()
        given = run_command.with_delimiter(app, sys.argv[1:] if words is None else list(words))
        app(given, exit_on_error=False, print_error=False)
    except SystemExit as ended:
        # Rich ends the process with 1 when the reader of our output has gone, which is no error.
        return 0 if isinstance(ended.__context__, BrokenPipeError) else ended.code
    except CycloptsError as error:
        sys.stderr.write(f"sluice: {sanitize(usage_text(error))}\n")
        return EXIT_USAGE
    except (CommandError, ServiceError) as error:
        sys.stderr.write(f"sluice: {sanitize(str(error))}\n")
        return error.exit_code if isinstance(error, CommandError) else CommandError.exit_code
    except UnicodeEncodeError as error:  # an argument that is not UTF-8 can be a path and nothing else
        sys.stderr.write(f"sluice: {error.object!r}: must be UTF-8 text; is the terminal set to something else?\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if not (isinstance(error, BrokenPipeError) or error.errno in _FULL):
            raise
        return _unwritten(error, 0)
    return 0


ESCAPED = "sluice-escaped"
"""How a character is written that standard output's encoding lacks: escaped as in JSON, so that documents stay so."""
codecs.register_error(ESCAPED, lambda error: (json.dumps(error.object[error.start : error.end])[1:-1], error.end))  # type: ignore[attr-defined]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def _unwritten(error: OSError, code: int | str | None) -> int | str | None:
    """The exit code when the output cannot be written whole; the rest is dropped."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return code  # the reader of our output has gone, which is no error
    sys.stderr.write(f"sluice: cannot write: {error.strerror}\n")
    return code or EXIT_FAILED


if __name__ == "__main__":
    main()
