"""What a page says to type can be typed: commands exist and have these options, targets and files are there.

Nothing is run here. `sluice` and `sluice-node-agent` read the line with their own parsers, up to the point where the
work would begin. Commands of others (kubectl, docker) are checked for the files of ours that they name; those of
docs/operations.md are run by tests/integration/test_pages_with_kubectl.py.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from cyclopts import App, CycloptsError

from sluice_console.__main__ import app
from sluice_node_agent.shell.commands import hardware_command, node_command

ROOT = Path(__file__).parents[3]
WHERE = ("*.md", "docs/*.md", "deploy/**/*.md", "services/*/README.md", "tests/*/README.md")
PAGES = sorted(page for pattern in WHERE for page in ROOT.glob(pattern))
OURS = ("sluice", "sluice-node-agent", "make")
OF_A_SHELL = ("cp", "rm", "mkdir", "export", "echo", "curl", "python", "sh", "source")
OF_OTHERS = ("kubectl", "helm", "docker", "nats", *OF_A_SHELL)
FOLDERS = ("deploy", "docs", "examples", "native", "proto", "tests", "tools")
NOT_CHECKED = {
    "sluice adjust --quota-request/--quota-limit": "two spellings of one command, in a sentence",
    "sluice COMMAND --help": "any of them",
    "make slice": "a phase, not a target",
    "sluice-node-agent hardware --data DIR NODE show|reboot|fault|start-process|stop-process|create|destroy": "a list",
}
"""Each with its reason."""

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:\A|\n\n)((?:    [^\n]*\n)+)")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_SAMPLE = re.compile(r"[A-Z][A-Z_.]*(?:[|:][A-Z]+)*(?:\.\w+)?")
"""What stands for a value: POD, SECONDS, UUID|INDEX, HOST:PORT, FILE.jsonl."""


class Typed(NamedTuple):
    """One command of a page; a whole line of a block, or a mention in a sentence, which may leave values out."""

    page: Path
    words: tuple[str, ...]
    whole: bool

    @property
    def line(self) -> str:
        return " ".join(self.words)


def _blocks(text: str) -> Iterator[str]:
    for _, language, block in _FENCED.findall(text):
        if language in {"", "sh", "bash", "shell", "console"}:
            yield block
    yield from _INDENTED.findall(_FENCED.sub("", text))


def _lines(block: str) -> Iterator[str]:
    """The commands of one block: those behind a prompt, where it has one."""
    lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    yield from lines


def _commands(line: str) -> Iterator[tuple[str, ...]]:
    """As a shell would split them, without brackets around what may be left out, and without variables in front."""
    plain = re.sub(r"<\((.*)\)", r"; \1", re.sub(r"[\[\]]|\.\.\.", " ", line))
    words: list[str] = []
    for word in [*shlex.split(plain, comments=True), ";"]:
        if word in {";", "|", "&&"}:
            yield tuple(words)
            words = []
        elif words or not re.match(r"[A-Z_]+=", word):
            words.append(word)


def _typed(page: Path) -> Iterator[Typed]:
    text = page.read_text(encoding="utf-8")
    for block in _blocks(text):
        for line in _lines(block):
            if re.match(rf"(?:[A-Z_]+=\S+ )*(?:{'|'.join(OURS + OF_OTHERS)}) ", line):
                for words in _commands(line):
                    if words and words[0] in OURS + OF_OTHERS:
                        yield Typed(page, words, whole=True)
    for mention in _INLINE.findall(re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)):
        if mention.partition(" ")[0] in OURS and " " in mention and mention not in NOT_CHECKED:
            yield from (Typed(page, words, whole=False) for words in _commands(mention))


ALL = [typed for page in PAGES for typed in _typed(page)]


def _of(program: str) -> list[Typed]:
    return [typed for typed in ALL if typed.words[0] == program]


def _sluice(typed: Typed) -> str:
    words = list(typed.words[1:])
    words = words[: next((at for at, word in enumerate(words) if word in {">", "<"}), len(words))]
    words = ["1" if _SAMPLE.fullmatch(word) else word for word in words if word not in {"--help", "--version"}]
    chain, apps, rest = app.parse_commands(words)
    command: App = apps[-1]
    if command.default_command is None:
        return f"no such command: {' '.join(words)}" if rest else ""
    ahead = rest[: rest.index("--")] if "--" in rest else rest
    names = {name for argument in command.assemble_argument_collection() for name in argument.names}
    for option in (word.partition("=")[0] for word in ahead if word.startswith("-") and word != "-"):
        if option not in names:
            return f"{' '.join(chain)} has no {option}"
    if typed.whole:
        try:
            _, _, unused, *_ = app.parse_known_args(words)
        except CycloptsError as error:
            return f"{type(error).__name__}: {error}"
        return f"left over: {unused}" if unused else ""
    return ""


def _node_agent(typed: Typed) -> str:
    words = typed.words[1:]
    if not words or words == ("--version",):
        return ""
    command = hardware_command if words[0] == "hardware" else node_command
    parser = command._parser()
    if not typed.whole and len(words) == 1:
        return "" if words[0] in parser.format_help() else f"no such command: {words[0]}"
    samples = ["1" if _SAMPLE.fullmatch(word) else word for word in words]
    try:
        parser.parse_args(samples)
    except SystemExit:
        return f"not understood: {' '.join(samples)}"
    return ""


def _make(typed: Typed) -> str:
    """Likewise of `make`: the target is there, and the variables are used."""
    files = ("Makefile", "native/quota/build.mk", "deploy/docker/build.sh")
    text = "\n".join((ROOT / file).read_text() for file in files)
    for word in typed.words[1:]:
        name, assigned, _ = word.partition("=")
        if assigned and not re.search(rf"\$[({{]{name}[)}}:]|{name} \?=|origin {name}\b", text):
            return f"nothing reads {name}"
        if not assigned and not re.search(rf"^{re.escape(word)}:", text, re.MULTILINE):
            return f"no target {word}"
    return ""


CHECKS = {"sluice": _sluice, "sluice-node-agent": _node_agent, "make": _make}


def _named(typed: Typed) -> str:
    return f"{typed.page.name}: {typed.line}"


@pytest.mark.parametrize("program", OURS)
def test_what_is_said_to_be_typed_can_be_typed(program: str) -> None:
    """A line copied from a page fails: there is no such command or option."""
    check = CHECKS[program]
    assert [f"{_named(typed)}: {wrong}" for typed in _of(program) if (wrong := check(typed))] == []


def test_files_that_commands_name_are_there() -> None:
    """A line copied from a page fails: there is no such file."""
    missing = []
    for typed in ALL:
        for word in typed.words if typed.whole else ():
            path = word.partition("::")[0]
            if path.partition("/")[0] in FOLDERS and "/" in path and not (ROOT / path).exists():
                missing.append(f"{_named(typed)}: {path}")
    assert missing == []


def test_commands_are_found() -> None:
    """A page that is written otherwise would make the tests above look at nothing."""
    assert len([typed for typed in _of("sluice") if typed.whole]) > 25
    assert len([typed for typed in _of("sluice") if not typed.whole]) > 100
    assert len(_of("make")) > 40
    assert len(_of("sluice-node-agent")) > 10
    assert {"README.md", "operations.md", "install.md", "migration.md"} <= {typed.page.name for typed in ALL}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("sluice gpsu", "no such command"),
        ("sluice gpus --colour", "has no --colour"),
        ("sluice adjust", "MissingArgumentError"),
        ("sluice node remove a b", "left over"),
        ("sluice top -o picture", "has no -o"),
        ("sluice up --pods pods --processes many", "CoercionError"),
        ("make tea", "no target tea"),
        ("make sim SEED_COUNT=3", "nothing reads SEED_COUNT"),
        ("sluice-node-agent shew", "not understood"),
    ],
)
def test_a_line_that_cannot_be_typed_is_found(line: str, wrong: str) -> None:
    """The tests above would pass whatever the pages say."""
    typed = Typed(ROOT / "README.md", tuple(line.split()), whole=True)
    assert wrong in CHECKS[typed.words[0]](typed)


def test_what_is_left_unchecked_is_still_on_a_page() -> None:
    """An exception for a line that is gone would hide the next one."""
    said = {mention for page in PAGES for mention in _INLINE.findall(page.read_text(encoding="utf-8"))}
    assert set(NOT_CHECKED) <= said


EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
IMAGE = "ubuntu:24.04"
"""An official image of Docker Hub with `sh` and glibc, which `nvidia-smi` needs. NVIDIA's runtime brings that."""
DEVICE = "MIG-7896fb44-b977-4761-9379-653f190fe21c"


def ran(command: list[str], folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """A container's command in a container of these programs, in which time does not pass."""
    for name, script in {"sleep": "exit 0", **programs}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "sh").symlink_to("/bin/sh")
    environment = {"PATH": str(folder), "NVIDIA_VISIBLE_DEVICES": DEVICE}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_ends_well_and_shows_its_device(example: Path, tmp_path: Path) -> None:
    """`ErrImagePull` was the end of every first pod."""
    for number, document in enumerate(yaml.safe_load_all(example.read_text(encoding="utf-8"))):
        pod = document["spec"].get("template", document)
        assert pod["spec"]["restartPolicy"] == "Never", "one that ends is started again, for ever"
        for container in pod["spec"]["containers"]:
            assert container["image"] == IMAGE
            ways = {"ticket": {}, "claim": {"ls": f"echo {DEVICE}"}, "real": {"nvidia-smi": f"echo {DEVICE}"}}
            for where, programs in ways.items():
                folder = tmp_path / f"{where}-{number}-{container['name']}"
                folder.mkdir()
                done = ran(container["command"], folder, **programs)
                assert (done.returncode, done.stdout.strip()) == (0, DEVICE), (where, done.stderr)
