"""
Builds an image from a Dockerfile without an engine: each step has a folder as its root, and what it changed is a layer.

A step is done once: its layer is kept under a key of all that went into it.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cluster.cache import digest_of, digest_of_file
from cluster.images.commands import CONTAINED, run
from cluster.images.dockerfile import Dockerfile, Instruction, Stage, list_of, pairs_of, replaced
from cluster.images.errors import ImageError
from cluster.images.layers import apply_layer, layer_between, state_of
from cluster.images.store import Store

RUN_S = 900
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Given to each RUN and kept nowhere, as engines do."""
NETWORK = ("/etc/resolv.conf", "/etc/hosts")
"""This machine's, which each RUN sees: it has the machine's network."""
_INSIDE = Path(__file__).with_name("inside.py")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Being:
    """A stage that is being built. `key` is of its last step; `root` is made when a step has to run."""

    settings: dict[str, Any]
    keys: list[str]
    key: str
    arguments: dict[str, str] = field(default_factory=dict)
    root: Path | None = None


class Assembler:
    """One build. `work` is an empty folder, `mounts` are pairs of a file here and its path in each RUN."""

    def __init__(
        self, store: Store, context: Path, work: Path, arguments: Mapping[str, str], mounts: Sequence[tuple[str, str]]
    ) -> None:
        self.store, self.context, self.work = store, context, work
        self.given = arguments
        self.mounts = [*((path, path) for path in NETWORK if Path(path).exists()), *mounts]
        self.used: list[str] = []
        self.built: dict[str, Being] = {}

    def build(self, file: Dockerfile, name: str) -> None:
        """Build the last stage and keep it as an image. Raises ImageError."""
        outer = {key: self.given.get(key, default) for key, default in file.arguments.items()}
        being = None
        for stage in file.stages:
            being = self._stage(stage, outer)
            self.built[stage.name] = being
        self.store.keep_image(name, being.settings, [key for key in being.keys if self.store.layer(key)], self.used)

    def _stage(self, stage: Stage, outer: Mapping[str, str]) -> Being:
        base = replaced(Instruction(0, "FROM", stage.base, {}), stage.base, outer)
        if base == "scratch":
            being = Being({}, [], digest_of(["scratch"]))
        else:
            image, keys = self.store.image(base)
            being = Being(dict(image.settings), list(keys), digest_of([layer.digest for layer in image.layers]))
        for step in stage.steps:
            sys.stdout.write(f"{stage.name}: {step.word} {step.text[:100]}\n")
            sys.stdout.flush()
            self._step(step, being, outer)
        return being

    def _step(self, step: Instruction, being: Being, outer: Mapping[str, str]) -> None:
        values = {**being.arguments, **_environment(being.settings)}
        match step.word:
            case "ARG":
                name, equals, default = step.text.partition("=")
                preset = replaced(step, default, values) if equals else outer.get(name)
                value = self.given.get(name, preset)
                if value is not None:
                    being.arguments[name] = value
            case "WORKDIR":
                target = PurePosixPath(being.settings.get("WorkingDir") or "/") / replaced(step, step.text, values)
                being.settings["WorkingDir"] = str(target)
                self._once(being, ["WORKDIR", str(target)], lambda root: _folder(step, root, target))
            case "RUN":
                self._run(step, being)
            case "COPY":
                self._copy(step, being, values)
            case _:
                _set(step, being.settings, values)

    def _run(self, step: Instruction, being: Being) -> None:
        words = list_of(step) or ["/bin/sh", "-c", step.text]
        variables = {"PATH": _PATH, **being.arguments, **_environment(being.settings)}
        workdir, user = being.settings.get("WorkingDir") or "/", being.settings.get("User") or "0:0"
        if not all(part.isdecimal() for part in user.split(":")):
            raise step.error(f"after USER {user}: only numbers (UID:GID) are understood here")
        passed = {name: os.environ[name] for name in PROXIES if name in os.environ}

        def act(root: Path) -> None:
            task = {
                "root": str(root), "workdir": workdir, "user": user, "words": words, "mounts": self.mounts,
                "env": {"HOME": "/root", **passed, **variables},
            }  # fmt: skip
            try:
                run([*CONTAINED, sys.executable, "-I", _INSIDE, json.dumps(task)], limit_s=RUN_S)
            except ImageError as error:
                # The command holds the whole task, which tells a reader nothing.
                problem = str(error).partition("}` ")[2] or str(error)
                raise step.error(f"`{' '.join(words)[:200]}` {problem}") from None

        self._once(being, ["RUN", json.dumps([words, variables, workdir, user], sort_keys=True)], act)

    def _copy(self, step: Instruction, being: Being, values: Mapping[str, str]) -> None:
        *sources, target = (replaced(step, word, values) for word in step.text.split())
        if not sources or step.text.startswith("["):
            raise step.error(f"{step.text!r} is not `SOURCE ... TARGET`")
        place = PurePosixPath(being.settings.get("WorkingDir") or "/") / target
        into = target.endswith(("/", ".")) or len(sources) > 1
        origin = step.flags.get("from")
        if origin is not None:
            if origin not in self.built:
                raise step.error(f"--from={origin} is no earlier stage ({', '.join(self.built)})")
            identity = self.built[origin].key
        else:
            identity = digest_of(_content(step, self.context, source) for source in sources)

        def act(root: Path) -> None:
            below = self.context if origin is None else self._root(self.built[origin])
            for source in sources:
                path = below / source.lstrip("/")
                if path.is_dir() and not path.is_symlink():
                    _copy_folder(step, path, root, place)
                elif path.exists() or path.is_symlink():
                    _folder(step, root, place if into else place.parent)
                    _copy_file(path, root / str(place / path.name if into else place).lstrip("/"))
                else:
                    raise step.error(f"there is no {source}")

        self._once(being, ["COPY", identity, *sources, str(place), str(into)], act)

    def _once(self, being: Being, parts: list[str], act: Callable[[Path], None]) -> None:
        """Do a step, or take its layer of an earlier time."""
        key = digest_of([being.key, *parts])
        if not self.store.has(key):
            root = self._root(being)
            before = state_of(root)
            act(root)
            self.store.keep(key, layer_between(root, before, state_of(root), self.store.place_of(key)))
        elif being.root is not None and (layer := self.store.layer(key)) is not None:
            apply_layer(layer.path, being.root)
        being.key = key
        being.keys.append(key)
        self.used.append(key)

    def _root(self, being: Being) -> Path:
        """A stage's files as a folder, with all layers so far."""
        if being.root is None:
            being.root = self.work / f"root-{len(list(self.work.iterdir()))}"
            being.root.mkdir(mode=0o755)
            for key in being.keys:
                layer = self.store.layer(key)
                if layer is not None:
                    apply_layer(layer.path, being.root)
        return being.root


def _set(step: Instruction, settings: dict[str, Any], values: Mapping[str, str]) -> None:
    match step.word:
        case "ENV":
            variables = {**_environment(settings), **pairs_of(step, values)}
            settings["Env"] = [f"{name}={value}" for name, value in variables.items()]
        case "LABEL":
            settings["Labels"] = {**(settings.get("Labels") or {}), **pairs_of(step, values)}
        case "USER":
            settings["User"] = replaced(step, step.text, values)
        case "ENTRYPOINT":
            settings["Entrypoint"] = list_of(step) or ["/bin/sh", "-c", step.text]
            settings.pop("Cmd", None)  # the base's, which was for another program
        case "CMD":
            settings["Cmd"] = list_of(step) or ["/bin/sh", "-c", step.text]


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    pairs = (variable.partition("=") for variable in settings.get("Env") or ())
    return {name: value for name, _, value in pairs}


def _folder(step: Instruction, root: Path, target: PurePosixPath) -> None:
    """Make a folder in a root, which no link on the way may leave."""
    path = root
    for part in target.parts[1:]:
        path /= part
        if path.is_symlink():
            raise step.error(f"{target} leads over a link, /{path.relative_to(root)}: name where it points to")
        if not path.is_dir():
            path.mkdir()
            path.chmod(0o755)


def _content(step: Instruction, context: Path, source: str) -> str:
    """All that a COPY takes from a source of the context, as a digest; times are no part of it."""
    top = context / source
    if not top.exists():
        raise step.error(f"there is no {source} in the context")
    parts = []
    for path in sorted([top, *top.rglob("*")]):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file"
        content = str(path.readlink()) if kind == "link" else digest_of_file(path) if kind == "file" else ""
        parts.append(f"{path.relative_to(context)} {kind} {path.lstat().st_mode:o} {content}")
    return digest_of(parts)


def _copy_folder(step: Instruction, source: Path, root: Path, target: PurePosixPath) -> None:
    _folder(step, root, target)
    for path in sorted(source.iterdir()):
        if path.is_dir() and not path.is_symlink():
            _copy_folder(step, path, root, target / path.name)
            made = root / str(target / path.name).lstrip("/")
            made.chmod(path.stat().st_mode & 0o7777)
            os.utime(made, ns=(0, path.stat().st_mtime_ns))
        else:
            _copy_file(path, root / str(target / path.name).lstrip("/"))


def _copy_file(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)
    os.chown(target, 0, 0, follow_symlinks=False)
    if not source.is_symlink():
        target.chmod(source.stat().st_mode & 0o7777)  # a change of owner takes set-ID bits
