"""Tab in real shells: names of the running system, and neither an error nor a long wait where there is none."""

import os
import pty
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from factories.processes import own_environment

from sluice_console.__main__ import app
from sluice_console.shell.commands.completion import completion_script

pytestmark = pytest.mark.timeout(300)
WITHIN_ALL_S = 60.0
"""A busy machine may not answer soon enough: then Tab shows nothing, and is pressed again."""
PRESSED_AGAIN_S = 15.0


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(completion_script(app, shell), encoding="utf-8")
    (folder / "_sluice").write_text(completion_script(app, "zsh"), encoding="utf-8")
    return folder


def environment(given: dict[str, str], home: Path) -> dict[str, str]:
    """A user without settings of a shell, who has `sluice` in the path."""
    path = f"{Path(sys.executable).parent}:{given.get('PATH', os.defpath)}"
    return given | {"PATH": path, "HOME": str(home), "ZDOTDIR": str(home), "TERM": "dumb", "XDG_CONFIG_HOME": str(home)}


def printed(
    shell: str, scripts: Path, typed: str, env: dict[str, str], within_s: float = WITHIN_ALL_S
) -> tuple[set[str], str]:
    """What bash or fish offers, and what it prints besides."""
    words = typed.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    program = {
        "bash": (
            f"source '{scripts}/bash'; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE='{typed}'; "
            f"COMP_POINT={len(typed)}; _sluice; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        ),
        "fish": f"source '{scripts}/fish'; complete -C '{typed}'",
    }[shell]
    done = subprocess.run(
        [shell, "-c", program], capture_output=True, text=True, timeout=within_s, check=False, env=env
    )
    return {line.partition("\t")[0] for line in done.stdout.splitlines() if line}, done.stderr


class Zsh:
    """An interactive zsh, as its user sees it."""

    def __init__(self, setup: str, env: dict[str, str]) -> None:
        self.far, near = pty.openpty()
        self.process = subprocess.Popen(
            ["zsh", "-f", "-i"], stdin=near, stdout=near, stderr=near, env=env, start_new_session=True
        )
        os.close(near)
        os.set_blocking(self.far, False)
        os.write(self.far, f"{setup}; echo set-up-$((1 + 1))\n".encode())
        assert "set-up-2" in self.until("set-up-2")

    def until(self, *shown: str, again: str = "", within_s: float = WITHIN_ALL_S) -> str:
        """The output once all this is shown; `again` is typed until then."""
        said, ends, next_at = "", time.monotonic() + within_s, 0.0
        while not all(each in said for each in shown) and (now := time.monotonic()) < ends:
            if again and now >= next_at:
                os.write(self.far, f"\x15{again}".encode())
                said, next_at = "", now + PRESSED_AGAIN_S
            try:
                said += os.read(self.far, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
        return said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.far)


async def test_names_of_the_running_system_are_completed_in_each_shell(up, scripts, tmp_path):
    """Else a user copies them from another window, and cordons the neighbour."""
    await up.started()
    up.add("by-profile")
    async with up.watching() as watching:
        await watching.bound("by-profile")
        gpus = await watching.until(lambda _, gpus: gpus, "the GPUs")
    uuids = {gpu.uuid for gpu in gpus if gpu.node == "gpu-1.example.internal"}
    env = environment(up.environment, tmp_path)
    lines = [
        ("sluice drain g", {"gpu-1.example.internal", "gpu-2"}),
        ("sluice drain gpu-1.example.internal --gpu G", uuids),
        ("sluice explain d", {"default/by-profile"}),
    ]
    for shell in ("bash", "fish"):
        for line, expected in lines if shutil.which(shell) is not None else ():
            ends, found = time.monotonic() + WITHIN_ALL_S, (set(), "")
            while found[0] != expected and time.monotonic() < ends:
                found = printed(shell, scripts, line, env)
            assert found == (expected, ""), (shell, line)
    if shutil.which("zsh") is None:
        return
    start = "setopt no_list_ambiguous; autoload -U compinit; compinit -u -D"
    for setup, cases in (
        (f"{start}; source '{scripts}/zsh'", [*lines, ("sluice gpus fits:7", {"fits:7g.40gb"})]),
        (f"fpath=('{scripts}' $fpath); {start}", lines[:1]),
    ):
        with closing(Zsh(setup, env)) as zsh:
            for line, expected in cases:
                shown = zsh.until(*expected, again=f"{line}\t")
                assert all(each in shown for each in expected), (line, shown)


@pytest.mark.parametrize("server", ["absent", "refuses", "silent"])
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_without_a_broker_tab_shows_nothing_and_soon(scripts, tmp_path, shell, server):
    """An error in the middle of the line, or a shell that seems to hang."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    env = environment(own_environment() | {"XDG_RUNTIME_DIR": str(tmp_path)}, tmp_path) | {"TMPDIR": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        if server != "absent":
            env["SLUICE_NATS_URL"] = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        if server == "refuses":
            listening.close()
        assert printed(shell, scripts, "sluice drain g", env, within_s=15) == (set(), "")
