"""The command line of `sluice security`. Needs no bus, no cluster and no running service; prints no secret."""

import datetime as dt
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from sluice_console.shell.cli_options import EXIT_FAILED, UsageError, agreed

if TYPE_CHECKING:
    from sluice_console.shell.security.installation import Installation

app = App(name="security", help="Make certificates and users, without Kubernetes (docs/security.md).")

Folder = Annotated[Path, Parameter(help="Folder of all credentials. Keep it on a machine that runs no part of Sluice.")]
Nodes = Annotated[tuple[str, ...], Parameter(negative="", help="The name of a node with an agent.")]
FILES_LIE, LISTENS = (
    "Folder of the files on their machine, as written into the settings",
    "Address that the broker listens on",
)
RELOAD = "Bring the changed files to their machines; then: nats-server --signal reload=PID"


@app.command(name="init")
def init_command(
    folder: Folder,
    *,
    host: Annotated[tuple[str, ...], Parameter(negative="", help="Name or address by which clients reach the broker.")],
    node: Nodes = (),
    listen: Annotated[str, Parameter(help=f"{LISTENS}.")] = "127.0.0.1:4222",
    at: Annotated[str, Parameter(help=f"{FILES_LIE}.")] = "",
    authority: Annotated[Path | None, Parameter(help="Your own authority (PEM) instead of new ones.")] = None,
    authority_key: Annotated[Path | None, Parameter(help="Its key: EC, PEM, without a password.")] = None,
    force: Annotated[bool, Parameter(negative="", help="Replace what is there.")] = False,
) -> int:
    """Create authorities, the broker's configuration, and a folder for each service, person and node."""
    from sluice_console.shell.security.installation import InstallationOptions, given_authority

    given = given_authority(authority, authority_key)
    _opened(folder).create(host, node, InstallationOptions(listen, at), given=given, force=force)
    return _said(
        f"created in {folder}: authorities (keep them offline), broker, and a folder for each service and node.\n"
        "Each folder goes to its own machine and nowhere else; sluice.env in it has the settings.\n"
        "Start the broker in its folder: nats-server -c nats-server.conf"
    )


@app.command(name="add-node")
def add_node_command(
    folder: Folder,
    *node: str,
    listen: Annotated[str | None, Parameter(help=f"{LISTENS}; by default as given to init.")] = None,
    at: Annotated[str | None, Parameter(help=f"{FILES_LIE}; by default as given to init.")] = None,
) -> int:
    """Add nodes; of the other files only the broker's list of users changes.

    Existing nodes keep their files; with --listen or --at their sluice.env is rewritten."""
    from sluice_console.shell.security.installation import InstallationOptions

    _named(node)
    _opened(folder).add(node, InstallationOptions(listen, at))
    return _said(f"added: {', '.join(node)}.\n{RELOAD}.")


@app.command(name="remove-node")
def remove_node_command(
    folder: Folder,
    *node: str,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")] = False,
) -> int:
    """Remove nodes: once the broker has reloaded its users, their agents can no longer connect."""
    _named(node)
    if not agreed(f"cut the agents of {', '.join(node)} off?", yes=yes):
        return EXIT_FAILED
    _opened(folder).forget(node)
    return _said(f"forgotten: {', '.join(node)}.\n{RELOAD}.")


@app.command(name="renew")
def renew_command(
    folder: Folder,
    *,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Renew all of them.")] = False,
) -> int:
    """Renew certificates that expire within 30 days. Services reload them when they change."""
    _opened(folder).renew(everything=all_)
    return _said(f"renewed what was due.\n{RELOAD}.")


@app.command(name="rotate")
def rotate_command(folder: Folder) -> int:
    """Take the next of three steps to new authorities; copy the files to their machines after each step."""
    from sluice_console.shell.security.installation import ROTATION

    step = _opened(folder).rotate()
    then = "It is done" if step == len(ROTATION) else "When every machine has its files, run it again"
    return _said(f"step {step} of {len(ROTATION)}: {ROTATION[step - 1]}.\n{RELOAD}.\n{then}.")


def _opened(folder: Path) -> "Installation":
    from sluice_console.shell.security.installation import Installation
    from sluice_console.shell.security.key_folder import KeyFolder

    return Installation(KeyFolder(folder), dt.datetime.now(dt.UTC))


def _named(nodes: tuple[str, ...]) -> None:
    if not nodes:
        raise UsageError("name at least one node, after the folder")


def _said(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    return 0
