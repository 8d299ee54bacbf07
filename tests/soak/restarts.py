"""The agent is restarted again and again under 28 live slices and 8 MPS daemons: nothing of theirs may change."""

from collections.abc import Callable

from soak import judge
from soak.broker import Held
from soak.cycles import give_back, share, sliced
from soak.rig import Rig

EXCLUSIVE = 5
"""On each of four GPUs; two homes beside them make seven slices of one GPU."""


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
    before = _state(rig, held)
    daemons = [process for process in judge.processes_of(rig.place.mps) if process.is_daemon]
    if (len(held), len(daemons)) != (28, 8):
        raise rig.failure(f"there are {len(held)} slices and {len(daemons)} daemons instead of 28 and 8")
    for number in range(times):
        rig.restart(orderly=number % 2 == 1)
        rig.until(lambda: rig.ask_snapshot().agent_run.endswith(str(rig.counts.lives)), "the new life speaks")
        rig.check()
        after = _state(rig, held)
        if _is_asked(before, after):
            rig.until(lambda: _state(rig, held) == before, "everything is as it was before the restart")
        elif after != before:
            changed = [(was, now) for was, now in zip(before, after, strict=True) if was != now]
            raise rig.failure(f"restart {number + 1} has disturbed what lives: {changed}")
    give_back(rig, *held)
    rig.check()
    say(f"{times} restarts under 28 slices and 8 MPS daemons: nothing changed")


def _is_asked(before: list[object], after: list[object]) -> bool:
    """
    Whether there is only one process more.

    One that asks a daemon shows its command only when it has begun; it ends with its answer.
    """
    (*rest_before, was, given_before), (*rest_after, now, given_after) = before, after
    assert isinstance(was, list)
    assert isinstance(now, list)
    is_more = len(now) == len(was) + 1 and all(each in now for each in was)
    return is_more and (rest_before, given_before) == (rest_after, given_after)


def _state(rig: Rig, held: list[Held]) -> list[object]:
    tickets = {name: (rig.place.tickets / name).stat().st_ino for name in judge.names_in(rig.place.tickets)}
    processes = sorted((p.home, p.pid, p.started_at) for p in judge.processes_of(rig.place.mps))
    return [rig.machine.look(), tickets, processes, [(one.word.devices, one.word.ticket) for one in held]]
