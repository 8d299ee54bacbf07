"""What can be typed: `sluice run`. It imports what it needs when it is typed."""

import os
import sys
from pathlib import Path
from typing import Annotated, get_args

from cyclopts import App, Parameter

from sluice_console.shell.cli_options import run
from sluice_console.shell.run.errors import EXIT_OURS

WAIT_MAX_S = 30 * 86400


NAME = "run"


def add_to(app: App) -> None:
    """Give the command its verb."""
    app.command(run_command, name=NAME)


def with_delimiter(app: App, words: list[str]) -> list[str]:
    """
    What was typed, with `--` before the command that `sluice run` runs, whose options are none of ours.

    Ours end at the first word that is none of them. What begins with a hyphen before it is an option: one that is not
    known is left for the parser to say so.
    """
    if words[:1] != [NAME]:
        return words
    takes_value = {
        name: bool not in {argument.hint, *get_args(argument.hint)}
        for argument in app[NAME].assemble_argument_collection()
        for name in argument.names
    }
    at = 1
    while at < len(words) and words[at].startswith("-"):
        name, is_set, _ = words[at].partition("=")
        if name not in takes_value:
            return words
        at += 2 if takes_value[name] and not is_set else 1
    return [*words[:at], "--", *words[at:]] if at < len(words) else words


def run_command(
    *command: Annotated[str, Parameter(help="What to run, after --.")],
    profile: Annotated[str | None, Parameter(help="A MIG profile: 1g.5gb.")] = None,
    memory: Annotated[str | None, Parameter(help="At least so much: 8Gi, or MiB.")] = None,
    sm: Annotated[str | None, Parameter(help="At least so many percent of the SMs; of a share, exactly.")] = None,
    gpus: Annotated[str | None, Parameter(help="So many of them. Without any size: whole GPUs.")] = None,
    mode: Annotated[str | None, Parameter(help="exclusive, mps, fractional, a list, or auto.")] = None,
    wait_s: Annotated[float, Parameter(help="Wait at most so long for the slice.")] = 3600.0,
    server: Annotated[
        str | None,
        Parameter(
            name=["--server", "--nats"],
            help="NATS URL; otherwise the running `sluice up`, otherwise one is started for this run.",
        ),
    ] = None,
    pods: Annotated[Path | None, Parameter(help="The folder that this machine's pod-watcher reads.")] = None,
    node: Annotated[str, Parameter(help="On this node only; with --pods otherwise this machine.")] = "",
    namespace: Annotated[str, Parameter(help="Whose quota counts.")] = "default",
    name: Annotated[str, Parameter(help="What the others see; otherwise one is made up.")] = "",
    simulated: Annotated[
        bool | None,
        Parameter(negative="--real", help="On which GPUs, where a system is started; otherwise on real ones, if any."),
    ] = None,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Say nothing but failures.")] = False,
) -> int:
    """
    Run a command on a slice of a GPU of this machine, and give the slice back when it ends (docs/run.md).

    The exit code is the command's (128 and the signal, 126, 127 as in a shell); 125 when it was not run.
    """
    from sluice_console.core.run_request import RunRequest
    from sluice_console.shell.live.running_systems import SERVER_VARIABLE
    from sluice_console.shell.run import signals
    from sluice_console.shell.run.run import RunOptions, run_on_slice

    if not command:
        sys.stderr.write("sluice run: which command? sluice run [options] -- CMD...\n")
        return EXIT_OURS
    if not 0 < wait_s <= WAIT_MAX_S:
        sys.stderr.write(f"sluice run: --wait-s {wait_s:g}: more than 0 and at most {WAIT_MAX_S} seconds\n")
        return EXIT_OURS
    wanted = RunOptions(
        command=command,
        ask=RunRequest(profile=profile, memory=memory, sm=sm, gpus=gpus, mode=mode),
        server=server or os.environ.get(SERVER_VARIABLE, ""),
        pods_dir=pods,
        node=node,
        namespace=namespace,
        name=name,
        wait_s=wait_s,
        simulated=simulated,
        quiet=quiet,
    )
    ignored = signals.ignored_before()
    return run(run_on_slice(wanted, taken=signals.block(), ignored=ignored))
