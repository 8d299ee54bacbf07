"""What all commands have in common: exit codes, forms, questions before pods are hurt, completion."""

import io
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cyclopts.completion._engine import compute_completions
from factories.console import pod_of

from sluice.contracts.messages import SliceQuarantined
from sluice.runtime.bus import DeniedError
from sluice_console import __main__ as command
from sluice_console.core.documents import PodsDocument
from sluice_console.shell.cli_options import EXIT_FAILED, EXIT_USAGE, UsageError, agreed, run
from sluice_console.shell.commands.completion import completion_script
from sluice_console.shell.commands.run import with_delimiter
from sluice_console.shell.errors import CommandError, NotFoundError
from sluice_console.shell.live import names
from sluice_console.shell.operate.quarantine import DeclinedError, QuarantineRelease, check, quarantined_on
from sluice_console.shell.output.printer import console, show_pods

DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run -- true", "run -- true"),
        ("run true --lr 3 --memory 9", "run -- true --lr 3 --memory 9"),
        ("run --memory 8Gi -q python x.py -q", "run --memory 8Gi -q -- python x.py -q"),
        ("run --memory=8Gi --real python", "run --memory=8Gi --real -- python"),
        ("run --nats nats://x:1 --gpus 2 -- a -- b", "run --nats nats://x:1 --gpus 2 -- a -- b"),
        ("run --memry 8Gi true", "run --memry 8Gi true"),
        ("run --memory", "run --memory"),
        ("run --help", "run --help"),
        ("gpus --memory run", "gpus --memory run"),
    ],
)
def test_the_options_of_a_command_are_not_taken_for_those_of_run(words, expected):
    """`sluice run python x.py --memory 9` would have asked for 9 MiB, and `--memry` been looked for as a program."""
    assert with_delimiter(command.app, words.split()) == expected.split()


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("run --memry 8Gi -- true", "--memory"),
        ("run --profil=1g.5gb true", "--profile"),
        ("gpus --sever x", "--server"),
        ("drain n --yess", "--yes"),
        ("up --fleeet x --pods y", "--fleet"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_right_one(typed, capsys, words, right):
    """In every command: what looks like an option is one, and never the name of a program."""
    assert typed(*words.split()) == EXIT_USAGE
    assert f"Did you mean {right}?" in capsys.readouterr().err


@pytest.fixture
def typed(monkeypatch, tmp_path):
    """Type a command as a user for whom nothing runs; its exit code. What `sluice run` blocks is unblocked after."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SLUICE_NATS_URL", raising=False)

    def type_(*words):
        with pytest.raises(SystemExit) as ended:
            command.main(words)
        return ended.value.code

    yield type_
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


WATCHED = [
    (*words.split(), "--watch")
    for words in ("gpus", "nodes", "pods", "usage", "quota list", "report", "explain a", "trace a", "consolidate")
]
"""Every command that shows what changes, besides `top` and `events -f`."""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("gpus",), 3, "nothing is running"),
        (("pods", "-o", "yaml"), 3, "nothing is running"),
        *((words, 3, "nothing is running") for words in WATCHED),
        (("explain", "--watch"), 2, "--watch needs a pod; `sluice pods --waiting --watch` shows all that wait"),
        (("pods", "--server", "nats://127.0.0.1:PORT"), 1, "has a port that is no number from 1 to 65535"),
        (("top",), 3, "nothing is running"),
        (("release-quarantine", "a"), 3, "nothing is running"),
        (("gpus", "--json", "-o", "yaml"), 2, "--json contradicts -o yaml: name one of them"),
        (("gpus", "-o", "picture"), 2, 'Invalid value "picture" for -o. Choose from: "wide", "json", "yaml"'),
        (("trace", "a", "-o", "yaml"), 3, "nothing is running"),
        (("trace", "a", "--json", "-o", "yaml"), 2, "--json contradicts -o yaml: name one of them"),
        (("events", "--since-s", "-1"), 2, "--since-s -1: must be 0 or more seconds"),
        (("events", "--since-s", "inf"), 2, "--since-s inf: must be 0 or more seconds, and at most 3153600000"),
        (("events", "--since-s", "1e300"), 2, "--since-s 1e+300: must be 0 or more seconds, and at most 3153600000"),
        (("events", "--since-s", "3153600000"), 3, "nothing is running"),
        (("usage", "--idle-s", "inf"), 2, "--idle-s inf: must be 0 or more seconds, and at most 3153600000"),
        (("usage", "--idle-s", "nan"), 2, "--idle-s nan: must be 0 or more seconds, and at most 3153600000"),
        (("bench", "--requests", "0"), 2, "--requests 0: must be from 1 to 100000"),
        (("bench", "--json", "-o", "yaml"), 2, "--json contradicts -o yaml: name one of them"),
        (("up", "--data", "/nonexistent", "--pods", "/" + "a" * 300), 1, "is no folder: make it first (mkdir)"),
        (("doctor", "--no-bus", "--kubeconfig", "/" + "a" * 300), 2, ""),
        (("bench", "--replay", "/dev/null", "--requests", "0"), 2, "--requests 0: must be from 1 to 100000"),
        (("bench", "--rate", "nan"), 2, "--rate nan --burst 1: a rate from 0"),
        (("bench", "--replay", "/dev/null", "--speed", "nan"), 2, "--speed nan: must be more than 0"),
        (("bench", "--within-s", "nan"), 2, "--within-s nan: must be more than 0"),
        (("simulate", "-f", "-", "-f", "-", "--server", "nats://127.0.0.1:1"), 2, "name - once"),
        (("security", "add-node", "/nonexistent"), 2, "name at least one node"),
        (("security", "remove-node", "/nonexistent", "--yes"), 2, "name at least one node"),
        (("security", "renew", "/" + "a" * 300), 1, "File name too long"),
        (("doctor", "--inventory", "127.0.0.1"), 2, "--inventory '127.0.0.1' is no address: must be HOST:PORT"),
        (("help",), 2, 'sluice: Unknown command "help". Available commands: gpus, nodes, pods, top, usage'),
        (("quota", "remove"), 2, "Available commands: list, set, unset. (`sluice quota --help`)\n"),
        (("quota", "set", "--gpus", "1"), 2, "sluice: NAMESPACE is missing (`sluice quota set --help`)\n"),
        (("up", "--fleet", "f"), 2, "sluice: --pods is missing (`sluice up --help`)\n"),
        (("pods", "-n"), 2, "sluice: -n: needs a value (`sluice pods --help`)\n"),
        (("pods", "-node:gpu-*"), 2, "sluice: -node:gpu-*: words that exclude come after `--`\n"),
        (("report", "--since", "0d"), 2, "sluice: --since 0d: must be a number above 0 with a unit"),
        (("gpus", "-team:x"), 2, "sluice: -team:x: words that exclude come after `--` (`sluice gpus --help`)\n"),
        (("bench", "--replay", "/nonexistent"), 2, "--replay /nonexistent cannot be read: No such file or directory"),
        (("simulate", "pod.yaml"), 2, "sluice: pod.yaml: not expected here (`sluice simulate --help`)\n"),
        (("usage", "--idle-s", "1h"), 2, "sluice: --idle-s 1h: must be a number of seconds (`sluice usage --help`)\n"),
        (("up", "--pods", "p", "--processes", "x"), 2, "--processes x: must be a whole number (`sluice up --help`)\n"),
        (("pods", "--waiting=5"), 2, "sluice: --waiting 5: must be true or false (`sluice pods --help`)\n"),
        (("drain", "n"), 3, "nothing is running"),
        (("release-quarantine", "a", "--ignore-holders"), 2, "a confirmation, and there is no terminal; use --yes"),
        (("security", "remove-node", "folder", "n"), 2, "no terminal to confirm on; use --yes"),
        (("run",), 125, "which command?"),
        (("run", "--wait-s", "0", "--", "true"), 125, "--wait-s 0: more than 0 and at most"),
        (("run", "--memry", "8Gi", "--", "true"), 2, ""),
        (("run", "--memory", "10", "--", "true"), 125, "--memory: 10 without a unit is 10 MiB; did you mean 10Gi?"),
        (("adjust", "a", "--memory", "10", "--server", "nats://127.0.0.1:1"), 2, "did you mean 10Gi?"),
        (("run", "--", "--no-such-program"), 127, "--no-such-program: there is no such command"),
        (("run", "no-such-program", "--memry", "8Gi"), 127, "no-such-program: there is no such command"),
    ],
)
def test_scripts_can_tell_why_a_command_failed(typed, capsys, words, code, said):
    assert typed(*words) == code
    told = capsys.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err
    if said:
        assert not told.out


def test_no_command_vouches_for_processes_without_a_question():
    """A tenant's process would be left on a device that is given to the next one."""
    wanted = QuarantineRelease(allocation="a", ignore_holders=True)
    questions = []
    with pytest.raises(DeclinedError, match="nothing was done") as no:
        check(wanted, is_terminal=True, ask=lambda question: bool(questions.append(question)))
    with pytest.raises(UsageError) as unasked:
        check(wanted, is_terminal=False, ask=pytest.fail)
    assert (no.value.exit_code, unasked.value.exit_code) == (1, 2), "docs/cli.md: a script tries the second again"
    assert questions == ["do you confirm that no process on the devices of a belongs to its pod?"]
    check(wanted, is_terminal=True, ask=lambda _: True)
    check(QuarantineRelease(allocation="a", ignore_holders=True, yes=True), is_terminal=False, ask=pytest.fail)
    check(QuarantineRelease(allocation="a"), is_terminal=False, ask=pytest.fail)


def test_only_a_yes_is_a_yes(monkeypatch, capsys):
    """A line that was meant for something else would cut a node off."""
    ours, theirs = pty.openpty()
    answers = ((b"y\n", True), (b"YES\n", True), (b"\n", False), (b"node-1\n", False), (b"\x04", False))  # Ctrl-D
    with os.fdopen(ours, "wb", buffering=0) as person, os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        for typed, expected in answers:
            person.write(typed)
            assert agreed("cut it off?", yes=False) is expected
    assert capsys.readouterr().err.count("cut it off? [y/N] ") == 5
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="no terminal"):
        agreed("cut it off?", yes=False)
    assert agreed("cut it off?", yes=True)


@pytest.mark.parametrize(
    ("user", "verb", "said"),
    [
        ("console", "Publish", "may not publish sluice.cordon.node1: use the user 'operator' for changes"),
        ("console", "Subscription", "does not let 'console' listen to 'sluice.cordon.node1'"),
        ("operator", "Publish", "does not let 'operator' publish to 'sluice.cordon.node1'"),
    ],
)
def test_who_may_only_read_is_told_who_may_do_more(capsys, user, verb, said):
    """Otherwise an operator would look for a fault in the broker's users."""

    async def drain() -> int:
        raise DeniedError(user=user, verb=verb, subject="sluice.cordon.node1")

    assert run(drain()) == EXIT_FAILED
    assert said in capsys.readouterr().err


def test_a_slice_in_quarantine_is_found_by_its_name(make):
    stuck = msgspec.structs.replace(make.slice(), state="quarantined")
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report(), stuck))
    (node,) = fleet_state.inventories()
    assert quarantined_on(fleet_state, make.allocation) == node
    with pytest.raises(NotFoundError, match=f"no slice 'b' in quarantine; there are: {make.allocation}") as told:
        quarantined_on(fleet_state, "b")
    assert isinstance(told.value, CommandError)
    assert told.value.exit_code == 4


def test_a_pipe_and_no_color_get_no_colours(monkeypatch, capsys):
    pods = PodsDocument(pods=(pod_of(),))
    show_pods(console(), pods)
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_pods(console(), pods)
    assert "\x1b[32m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    show_pods(console(), pods)
    assert "\x1b[3" not in capsys.readouterr().out


def every_command(app, before="sluice"):
    for name in app:
        if name.startswith("-"):
            continue
        deeper = list(every_command(app[name], f"{before} {name}"))
        yield from deeper or [f"{before} {name}"]


def test_what_can_be_had_as_json_can_be_had_as_yaml():
    """A user who learned `-o` at one command types it at the next one."""
    options = {}
    for line in every_command(command.app):
        _, apps, _ = command.app.parse_commands(line.split()[1:])
        options[line] = {name for each in apps[-1].assemble_argument_collection() for name in each.names}
    documented = {line for line, names in options.items() if "--json" in names}
    assert len(documented) >= 12
    assert {line for line in documented if "-o" not in options[line]} == set()


def test_every_command_is_in_the_documentation():
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[a-z][a-z-]+", text))
    missing = [each for each in every_command(command.app) if each.split()[1] not in words]
    assert not missing, missing


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(completion_script(command.app, shell), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("typed_so_far", "offered"),
    [
        ("sluice dr", {"drain"}),
        ("sluice quota s", {"set"}),
        ("sluice gpus --out", {"--output"}),
        ("sluice gpus -o ", {"wide", "json", "yaml"}),
    ],
)
def test_bash_completes_commands_options_and_values(scripts, typed_so_far, offered):
    words = typed_so_far.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    program = (
        f"source '{scripts}/bash'; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        f"COMP_LINE='{typed_so_far}'; COMP_POINT={len(typed_so_far)}; _sluice; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert {word.strip() for word in done.stdout.split()} == offered, done.stderr


@pytest.mark.parametrize(("shell", "look"), [("zsh", ("-n",)), ("fish", ("--no-execute",))])
def test_the_other_shells_understand_their_scripts(scripts, shell, look):
    if shutil.which(shell) is None:
        text = (scripts / shell).read_text(encoding="utf-8")
        assert "release-quarantine" in text
        pytest.skip(f"no {shell} here: only looked whether its script names the commands")
    subprocess.run([shell, *look, str(scripts / shell)], capture_output=True, timeout=20, check=True)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("explain ", ["default/train"]),
        ("trace d", ["default/train"]),
        ("adjust ", ["default/train"]),
        ("adjust default/train --container ", []),
        ("cordon --node ", ["gpu-1.example.internal", "gpu-2"]),
        ("node remove ", ["gpu-1.example.internal", "gpu-2"]),
        ("drain ", ["gpu-1.example.internal", "gpu-2"]),
        ("drain gpu-2 --gpu ", []),
        ("drain gpu-1.example.internal --gpu ", ["GPU-aaaaaaaa-0000"]),
        ("quota set ", ["default", "lab"]),
        ("quota list ", ["default", "lab"]),
        ("pods -n ", ["default", "lab"]),
        ("run --profile ", ["1g.5gb", "7g.40gb"]),
        ("release-quarantine ", ["run1-1_alloc_1"]),
        ("usage ", ["team:default", "team:lab", "node:gpu-1.example.internal", "node:gpu-2", "is:idle"]),
        ("usage node :", [":gpu-1.example.internal", ":gpu-2"]),  # as bash splits it
        ("usage node : gpu", ["gpu-1.example.internal", "gpu-2"]),
        ("top fits:1g", 15),
    ],
)
def test_names_of_the_system_are_offered_where_they_belong(make, monkeypatch, typed, offered):
    """And none that a shell would run: users name pods."""
    stuck = SliceQuarantined(allocation=make.allocation, request=make.request, revision=1, message="y")
    inventory = make.inventory(make.gpu_report())
    fleet_state = make.fleet_state(request=make.asked(), inventory=inventory, slice=stuck)
    fleet_state.values["sluice.request.r2"] = make.asked(name="$(reboot)", namespace="lab")
    fleet_state.values["sluice.node.gpu-2"] = make.changed()
    monkeypatch.setattr(names, "_read", lambda _: fleet_state)
    found = [each.value for each in compute_completions(command.app, typed.split(" "))]
    assert (len(found) if isinstance(offered, int) else found) == offered
