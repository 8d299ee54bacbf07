"""
`kubectl sluice`: the commands of `sluice` at the cluster of a kubeconfig (docs/cli.md).

A program named `kubectl-sluice` on PATH is a plugin of kubectl. It prepares the way to the bus, runs the command in
this process, and removes what it made.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.cli_options import UsageError
from sluice_console.shell.errors import CommandError
from sluice_console.shell.kube.bus_access import SYSTEM_NAMESPACE, ClusterOptions, KubectlRunner, bus_of_cluster

READ = ("gpus", "nodes", "pods", "top", "explain", "trace", "events", "web")
WRITE = ("quota", "cordon", "uncordon", "drain", "node")
NAMESPACED = "pods"
HELP = f"""kubectl sluice [--context NAME] [--kubeconfig FILE] [--system-namespace NS] COMMAND ...

GPU slices of the cluster, by your rights in it:
  {", ".join(READ):54}need to create tokens of sluice-console
  {", ".join(WRITE):54}need to create tokens of sluice-operator
  {"doctor":54}needs rights to look at what it checks

`pods` shows the namespace of your context: -n NAME another, -A all.
`kubectl sluice COMMAND --help` lists a command's options. All else is in `sluice --help`.
"""


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of the `kubectl-sluice` script. Ends the process."""
    parser = argparse.ArgumentParser("kubectl sluice", add_help=False, allow_abbrev=False)
    parser.add_argument("--kubeconfig", default="")
    parser.add_argument("--context", default="")
    parser.add_argument("--system-namespace", default=SYSTEM_NAMESPACE)
    found, rest = parser.parse_known_args(sys.argv[1:] if words is None else list(words))
    options = ClusterOptions(found.kubeconfig, found.context, found.system_namespace)
    command = rest[0] if rest else "help"
    if command in {"help", "--help", "-h"}:
        sys.stdout.write(HELP)
        sys.exit(0)
    try:
        sys.exit(_run(command, rest, options))
    except CommandError as error:
        sys.stderr.write(f"kubectl sluice: {sanitize(str(error))}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(command: str, rest: list[str], options: ClusterOptions) -> int | str | None:
    if command == "doctor":
        return _doctor(rest, options)
    if command not in {*READ, *WRITE}:
        known = ", ".join((*READ, *WRITE, "doctor"))
        raise UsageError(f"{command!r} must be one of {known}; `sluice` has the other commands")
    if {"--help", "-h"} & set(rest):
        return _sluice(rest)
    kubectl = KubectlRunner(options)
    target = kubectl.target()
    where = f"context {target.context}, Sluice in {options.system_namespace}"
    if command == NAMESPACED:
        rest, shown = _in_namespace(rest, target.namespace)
        where += f", {shown}"
    user = "operator" if command in WRITE and rest[1:2] != ["list"] else "console"
    with bus_of_cluster(kubectl, options.system_namespace, user) as environment:
        sys.stderr.write(f"{sanitize(where)}\n")
        for name in [name for name in os.environ if name.startswith("SLUICE_")]:  # of another system
            del os.environ[name]
        os.environ.update(environment)
        return _sluice(rest)


def _in_namespace(rest: list[str], usual: str) -> tuple[list[str], str]:
    """The command with the namespace that it shows, and that in words."""
    parser = argparse.ArgumentParser("kubectl sluice", add_help=False, allow_abbrev=False)
    parser.add_argument("--namespace", "-n", default=usual)
    parser.add_argument("--all-namespaces", "-A", action="store_true")
    found, others = parser.parse_known_args(rest)
    if found.all_namespaces:
        return others, "all namespaces"
    return [NAMESPACED, "--namespace", found.namespace, *others[1:]], f"namespace {found.namespace}"


def _doctor(rest: list[str], options: ClusterOptions) -> int | str | None:
    """It asks kubectl itself, and leaves the bus out."""
    if options.context:
        raise UsageError("--context: doctor looks at the current one; choose it by `kubectl config use-context`")
    named = ["--kubeconfig", options.kubeconfig] if options.kubeconfig else ["--in-cluster"]
    return _sluice([*rest, *named, *([] if "--no-bus" in rest else ["--no-bus"])])


def _sluice(rest: list[str]) -> int | str | None:
    """The exit code of the `sluice` command."""
    from sluice_console.__main__ import main as sluice  # noqa: PLC0415 - the way to the bus comes first

    try:
        sluice(rest)
    except SystemExit as ended:
        return ended.code
    return 0


if __name__ == "__main__":
    main()
