"""
Reads the part of the Dockerfile language that the project's own files use; anything else is an error with its line.

Source: https://docs.docker.com/reference/dockerfile/
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.images.errors import ImageError

WORDS = ("FROM", "ARG", "ENV", "LABEL", "WORKDIR", "RUN", "COPY", "USER", "ENTRYPOINT", "CMD")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(.))")


@dataclass(frozen=True)
class Instruction:
    """`line` counts from 1; `flags` are those before the text, as `--from=build`."""

    line: int
    word: str
    text: str
    flags: Mapping[str, str]

    def error(self, problem: str) -> ImageError:
        return ImageError(f"line {self.line}, {self.word}: {problem}")


@dataclass(frozen=True)
class Stage:
    """From one FROM to the next. `base` still has its variables."""

    name: str
    base: str
    steps: tuple[Instruction, ...]


@dataclass(frozen=True)
class Dockerfile:
    """`arguments` are the ARGs before the first FROM, with their defaults."""

    arguments: Mapping[str, str]
    stages: tuple[Stage, ...]


def parse(text: str) -> Dockerfile:
    """Read a Dockerfile. Raises ImageError with the line."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for step in _instructions(text):
        if step.word == "FROM":
            match = re.fullmatch(r"(\S+)(?:\s+AS\s+(\S+))?", step.text, re.IGNORECASE)
            if match is None or step.flags:
                raise step.error(f"{step.text!r} is not `IMAGE` or `IMAGE AS NAME`")
            stages.append(Stage(match[2] or str(len(stages)), match[1], ()))
        elif stages:
            last = stages[-1]
            stages[-1] = Stage(last.name, last.base, (*last.steps, step))
        elif step.word == "ARG":
            name, _, default = step.text.partition("=")
            arguments[name] = default
        else:
            raise step.error("comes before the first FROM")
    if not stages:
        raise ImageError("the Dockerfile has no FROM")
    return Dockerfile(arguments, tuple(stages))


def pairs_of(step: Instruction, values: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE NAME="VALUE"` of ENV and LABEL, with variables replaced."""
    if "'" in step.text:
        raise step.error("single quotes are not understood: use double quotes")
    pairs = {}
    for word in shlex.split(step.text):
        name, equals, value = word.partition("=")
        if not equals:
            raise step.error(f"{word!r} is not NAME=VALUE")
        pairs[name] = replaced(step, value, values)
    return pairs


def list_of(step: Instruction) -> list[str] | None:
    """The words of `["a", "b"]`; None for the form that a shell reads."""
    if not step.text.startswith("["):
        return None
    try:
        words = json.loads(step.text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise step.error(f"{step.text} is not a JSON list of strings")
    return words


def replaced(step: Instruction, text: str, values: Mapping[str, str]) -> str:
    """A text with `$NAME` and `${NAME}` replaced; a name without a value becomes nothing."""

    def value(match: re.Match[str]) -> str:
        if match[3]:
            raise step.error(f"{match[0]!r} in {text!r}: only $NAME and ${{NAME}} are understood")
        return values.get(match[1] or match[2], "")

    return _VARIABLE.sub(value, text)


def _instructions(text: str) -> list[Instruction]:
    found = []
    collected, begin = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not line.strip() and not collected):
            continue
        begin = begin or number
        if line.rstrip().endswith("\\"):
            collected += line.rstrip()[:-1]
            continue
        found.append(_instruction(begin, (collected + line).strip()))
        collected, begin = "", 0
    if collected:
        raise ImageError(f"line {begin}: the last line ends with a backslash")
    return found


def _instruction(line: int, text: str) -> Instruction:
    word, _, rest = text.partition(" ")
    rest = rest.strip()
    flags: dict[str, str] = {}
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        name, _, value = flag[2:].partition("=")
        flags[name] = value
        rest = rest.strip()
    step = Instruction(line, word.upper(), rest, flags)
    if step.word not in WORDS:
        raise step.error(f"is not understood here (understood: {', '.join(WORDS)}): build with buildah or Docker")
    unknown = set(flags) - ({"from"} if step.word == "COPY" else set())
    if unknown:
        raise step.error(f"--{min(unknown)} is not understood here: build with buildah or Docker")
    return step
