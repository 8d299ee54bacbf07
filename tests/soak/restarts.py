"""The agent is restarted again and again under 28 live slices and 8 MPS daemons: nothing of theirs may change."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from soak import judge
from soak.broker import Held
from soak.cycles import give_back, share, sliced
from soak.rig import Rig

EXCLUSIVE = 5
"""On each of four GPUs; two homes beside them make seven slices of one GPU."""
HOMES = 8


@dataclass(frozen=True)
class State:
    """All that a restart must leave as it is, read at one moment."""

    gpus: object
    tickets: dict[str, int]
    """The inode of each."""
    processes: list[tuple[str, int, int]]
    """The home, process ID and start of each."""
    given: list[object]
    """Devices and ticket of each slice, as the agent has said them."""

    @property
    def is_quiet(self) -> bool:
        """Whether only each home's daemon and its server run, and no command is in flight."""
        homes = [home for home, _, _ in self.processes]
        return len(set(homes)) == HOMES and all(homes.count(home) == 2 for home in homes)


def restarts(rig: Rig, times: int, say: Callable[[str], None]) -> None:
    """Restart so often, in turn by SIGKILL and in order. Needs a rig of four GPUs in MIG mode."""
    held: list[Held] = []
    for gpu in range(4):
        held += [rig.grant(sliced(rig, gpu, "1g.5gb", start, 1)) for start in range(EXCLUSIVE)]
        for start in range(EXCLUSIVE, 7):
            home = sliced(rig, gpu, "1g.5gb", start, 1)
            held.append(rig.grant(share(home, memory_mib=1000), namespace=f"team-{gpu}-{start}"))
    for one in held:
        rig.until_said(one, "SliceReady")
    rig.check()
    before = _quiet(rig, held)
    daemons = sum(process.is_daemon for process in judge.processes_of(rig.place.mps))
    if (len(held), daemons) != (28, HOMES):
        raise rig.failure(f"there are {len(held)} slices and {daemons} daemons instead of 28 and {HOMES}")
    for number in range(times):
        rig.restart(orderly=number % 2 == 1)
        rig.until(lambda: rig.ask_snapshot().agent_run.endswith(str(rig.counts.lives)), "the new life speaks")
        rig.check()
        after = _state(rig, held)
        if _is_asked(before, after):
            rig.until(lambda: _state(rig, held) == before, "everything is as it was before the restart")
        elif after != before:
            now, was = asdict(after), asdict(before)
            changed = {name: (was[name], now[name]) for name in was if was[name] != now[name]}
            raise rig.failure(f"restart {number + 1} has disturbed what lives: {changed}")
    give_back(rig, *held)
    rig.check()
    say(f"{times} restarts under 28 slices and 8 MPS daemons: nothing changed")


def _quiet(rig: Rig, held: list[Held]) -> State:
    """The state at a moment without a command to a daemon, which would count as a process of the home."""
    states = [_state(rig, held)]

    def is_quiet() -> bool:
        states[:] = [_state(rig, held)]
        return states[0].is_quiet

    rig.until(is_quiet, f"a daemon and a server, and nothing else, work for each of {HOMES} homes")
    return states[0]


def _is_asked(before: State, after: State) -> bool:
    """Whether there are only more processes, which will end with their answers."""
    return set(before.processes) < set(after.processes) and replace(after, processes=before.processes) == before


def _state(rig: Rig, held: list[Held]) -> State:
    return State(
        gpus=rig.machine.look(),
        tickets={name: (rig.place.tickets / name).stat().st_ino for name in judge.names_in(rig.place.tickets)},
        processes=sorted((p.home, p.pid, p.started_at) for p in judge.processes_of(rig.place.mps)),
        given=[(one.word.devices, one.word.ticket) for one in held],
    )
