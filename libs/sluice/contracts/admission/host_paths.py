"""
Decide whether a path on the host leads to a directory, however it is written. Text only: links are not followed.

`/var/run` is the same as `/run` on every Linux that follows the Filesystem Hierarchy Standard 3.0 (3.15, 5.13).
Below `/proc/<process>` are that process's environment and memory, and `root`, the whole host again (proc(5)).
"""

from collections.abc import Sequence

_SELF = frozenset({"self", "thread-self"})


def parts_of(path: str) -> tuple[str, ...]:
    """The components of an absolute path as the kernel walks them, with `/var/run` as `/run`."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
        if parts == ["var", "run"]:
            parts = ["run"]
    return tuple(parts)


def leads_to(path: str, directories: Sequence[str]) -> str:
    """The first of `directories` that is at, below or above `path`; `/proc` for its processes; else empty."""
    parts = parts_of(path)
    if parts == ("proc",) or (parts[:1] == ("proc",) and (parts[1].isdecimal() or parts[1] in _SELF)):
        return "/proc"
    for directory in directories:
        ours = parts_of(directory)
        common = min(len(parts), len(ours))
        if parts[:common] == ours[:common]:
            return directory
    # /var holds the link `run`, which a container could follow.
    return next((each for each in directories if parts_of(each)[:1] == ("run",)), "") if parts == ("var",) else ""
