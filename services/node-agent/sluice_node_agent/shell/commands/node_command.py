"""`sluice-node-agent check | show | release-quarantine | clean-node`: what an operator can do on the node itself. Exit
codes: 0 success, 1 something must be fixed or failed, 2 a wrong command."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import GpuReport
from sluice.runtime import logs
from sluice.runtime.errors import ServiceError
from sluice.runtime.settings import load
from sluice_node_agent.csi.node_cleanup import clean_node
from sluice_node_agent.device import mounts
from sluice_node_agent.device.port import BackendError, DeviceError
from sluice_node_agent.dra.cdi_files import CdiFiles
from sluice_node_agent.preflight.environment import check_machine
from sluice_node_agent.preflight.findings import Check, Finding, Machine, worst
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.commands.machine import (
    NoAgentError,
    WhichNodeError,
    ask_snapshot,
    choose_node,
    look_into_journal,
    opened_machine,
    release_quarantine,
)
from sluice_node_agent.shell.commands.text import findings_text, shown_text
from sluice_node_agent.shell.commands.view import Shown, shown_by_agent, shown_by_journal

OK, FAILED, WRONG = 0, 1, 2


def run_command(arguments: Sequence[str]) -> int:
    wanted = _parser().parse_args(arguments)
    logs.configure(service="node-agent", run="command", level="error", form="text")
    try:
        return int(wanted.do(wanted))
    except WhichNodeError as error:
        return _fail(error, WRONG)
    except ServiceError as error:
        return _fail(error, FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluice-node-agent",
        description="Without arguments: run the agent, configured by SLUICE_* variables. "
        "The commands read the same variables.",
        epilog="`sluice-node-agent hardware --help` changes the hardware of a simulated node.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="check whether this node can be served, and what to fix")
    check.set_defaults(do=_check)
    show = commands.add_parser("show", help="list this node's GPUs, instances and slices, with their owners")
    show.set_defaults(do=_show)
    release = commands.add_parser("release-quarantine", help="retry a quarantined slice at once")
    release.add_argument("allocation", help="the slice, as `show` names it")
    release.add_argument(
        "--ignore-holders", action="store_true", help="confirm that the processes on its devices are not its tenant's"
    )
    release.set_defaults(do=_release)
    clean = commands.add_parser(
        "clean-node",
        help="after the agent and its driver have ended for good: remove their mounts, sockets and directories",
    )
    clean.set_defaults(do=_clean)
    clean.add_argument(
        "--of-process",
        type=int,
        default=0,
        metavar="PID",
        help="in the mount namespace of this process; 1 in a container with the host's processes",
    )
    for command in (check, show):
        command.add_argument("--json", action="store_true", help="as JSON")
    for command in (check, show, release, clean):
        command.add_argument("--node", default="", help="the node, where there are several")
        command.add_argument("--data", type=Path, default=None, help="data folder (SLUICE_DATA_DIR)")
    return parser


def _check(wanted: argparse.Namespace) -> int:
    node = wanted.node
    try:
        settings = _settings(wanted)
        node = choose_node(settings, wanted.node)
        with opened_machine(settings, node) as machine:
            findings = check_machine(machine)
    except WhichNodeError:
        raise
    except ServiceError as error:
        findings = [Finding(Check.SETTINGS, "problem", str(error), "correct it in the environment of the agent")]
    if wanted.json:
        _say_json({"node": node, "verdict": worst(findings), "findings": findings})
    else:
        _say(findings_text(node or "(not known)", findings))
    return FAILED if worst(findings) == "problem" else OK


def _show(wanted: argparse.Namespace) -> int:
    settings = _settings(wanted)
    node = choose_node(settings, wanted.node)
    shown = _looked_at(settings, node)
    if wanted.json:
        _say_json(shown)
    else:
        _say(shown_text(shown))
    return FAILED if shown.problems else OK


def _release(wanted: argparse.Namespace) -> int:
    settings = _settings(wanted)
    node = choose_node(settings, wanted.node)
    socket = paths.control_socket(settings.data_dir, node)
    _say(release_quarantine(socket, node, wanted.allocation, ignore_holders=wanted.ignore_holders))
    return OK


def _clean(wanted: argparse.Namespace) -> int:
    settings = _settings(wanted)
    if settings.kubelet_root is None:
        sys.stderr.write(
            "sluice-node-agent: kubelet_root is not set (SLUICE_NODE_AGENT_KUBELET_ROOT): there is nothing to clean\n"
        )
        return WRONG
    mps = settings.mps_dir or settings.pods_dir.parent / "mps"
    try:
        if wanted.of_process:
            mounts.enter_namespace_of(wanted.of_process)
        claims = CdiFiles(settings.cdi_dir).claims()
        kept = clean_node(settings.pods_dir, mps, settings.kubelet_root, claims)
    except OSError as error:
        sys.stderr.write(f"sluice-node-agent: not all could be removed: {error}\n")
        return FAILED
    for sentence in kept:
        sys.stderr.write(f"sluice-node-agent: kept: {sentence}\n")
    return FAILED if kept else OK


def _settings(wanted: argparse.Namespace) -> NodeAgentSettings:
    environ = dict(os.environ)
    if wanted.data is not None:
        environ["SLUICE_DATA_DIR"] = str(wanted.data)
    return load(NodeAgentSettings, service="node-agent", environ=environ)


def _looked_at(settings: NodeAgentSettings, node: NodeName) -> Shown:
    journal = look_into_journal(settings.data_dir, node)
    problems = [journal.problem] if journal.problem else []
    socket = paths.control_socket(settings.data_dir, node)
    try:
        snapshot = ask_snapshot(socket, node)
    except NoAgentError as error:
        if not paths.fits_a_socket(socket.absolute()):
            problems.append(str(error))  # it may run all the same
        with opened_machine(settings, node) as machine:
            return _without_agent(machine, problems)
    return shown_by_agent(snapshot, journal.records, problems)


def _without_agent(machine: Machine, problems: list[str]) -> Shown:
    gpus: tuple[GpuReport, ...] = ()
    boot_id = driver_version = ""
    try:
        backend = machine.open_gpus()
        try:
            boot_id, driver_version, gpus = backend.boot_id(), backend.driver_version(), backend.read()
        finally:
            backend.close()
    except (BackendError, DeviceError) as error:
        problems.append(f"the GPUs cannot be read: {error}")
    return shown_by_journal(
        machine.node, machine.journal.records, gpus, boot_id=boot_id, driver_version=driver_version, problems=problems
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _say_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def _fail(error: ServiceError, code: int) -> int:
    sys.stderr.write(f"sluice-node-agent: {error}\n")
    return code
