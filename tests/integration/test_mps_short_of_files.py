"""An agent without free file descriptors: a daemon that cannot be checked counts as alive, and stays."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories.descriptors import no_descriptor_left
from factories.gpus.mps import H1, Place, PodProcesses, mps_place, refusal_of, start_order, stop_order

from sluice_node_agent.core.instructions import StartMps, StopMps
from sluice_node_agent.device.mps.control import MpsProcess
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.mps.termination import HomeTermination
from sluice_node_agent.device.processes import Processes

LOOKED_AT = pytest.mark.parametrize("file", ["comm", "stat", "cgroup", "environ", "cmdline", "home.json"])
"""Files that are opened to check a process of /proc or a shared device; each opening may be the one that fails."""


class _OfTheNode(PodProcesses):
    """Reads the cgroup of a process, but finds no pod in it wherever these tests run."""

    def owner_of(self, pid: int) -> str:
        Processes.owner_of(self, pid)
        return ""


@pytest.fixture
def place() -> Iterator[Place]:
    with mps_place() as place:
        place.processes = _OfTheNode()
        place.reborn()
        yield place


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on no file of this name can be opened, for lack of a descriptor."""

    def begin(name: str) -> None:
        real = Path.open

        def opened(path: Path, *arguments: Any, **options: Any) -> Any:
            if path.name == name:
                raise OSError(errno.EMFILE, "Too many open files", str(path))
            return real(path, *arguments, **options)

        monkeypatch.setattr(Path, "open", opened)

    return begin


def test_a_daemon_that_cannot_be_looked_at_is_not_dead(place: Place) -> None:
    """All pods of a shared device would lose their slices because the agent had 1024 files open."""
    running = place.daemons.start(start_order())
    with no_descriptor_left():
        said = refusal_of(lambda: place.seen(running))
    assert "Too many open files" in said
    assert place.seen(running).alive


@LOOKED_AT
@pytest.mark.parametrize("order", [start_order(), stop_order()], ids=["started again", "ended"])
def test_a_daemon_that_cannot_be_looked_at_is_not_started_again_nor_taken_for_ended(
    place: Place, refuse: Callable[[str], None], file: str, order: StartMps | StopMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted agent would kill it under its tenants; or its directory would go, and it keep its GPU, forgotten."""
    running = place.daemons.start(start_order())
    refuse(file)
    with_it = place.daemons.start if isinstance(order, StartMps) else place.daemons.stop
    assert "Too many open files" in refusal_of(lambda: with_it(order))
    monkeypatch.undo()
    assert running[0] in [process.pid for process in place.left()]
    assert (place.root / H1 / "home.json").is_file()
    assert place.daemons.start(start_order()) == running
    place.stop()


@LOOKED_AT
def test_a_home_that_cannot_be_looked_at_is_not_missing(place, refuse, file, monkeypatch) -> None:
    """A restarted agent would not know its daemon, and start another one beside it."""
    running = place.daemons.start(start_order())
    place.reborn()
    refuse(file)
    assert "Too many open files" in refusal_of(place.daemons.found)
    monkeypatch.undo()
    (home,) = place.daemons.found()
    assert (home.pid, home.started_at) == running


def test_who_cannot_be_looked_at_has_not_ended(place: Place, refuse: Callable[[str], None], monkeypatch) -> None:
    """A daemon that never ends would be reported as ended."""
    pid, started_at = place.daemons.start(start_order())
    process = MpsProcess(pid, started_at, is_server=False)
    refuse("stat")
    with pytest.raises(MpsError, match="Too many open files"):
        HomeTermination(place.processes).await_end((process,), 0.1)
    monkeypatch.undo()
    earlier = replace(process, started_at=started_at - 1)
    assert HomeTermination(place.processes).await_end((process, earlier), 0.1) == (process,)


def test_an_agent_that_cannot_look_at_itself_does_not_go_on(place: Place, refuse: Callable[[str], None]) -> None:
    """It would not know its own pod, and so none of its daemons there: it would start others beside them."""
    refuse("cgroup")
    assert "Too many open files" in refusal_of(place.reborn)
