"""docs/settings.md: every setting of each service, from the settings classes and the docstrings of their fields."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import PurePath
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from sluice.runtime.settings import PREFIX, CommonSettings
from sluice_allocator.settings import AllocatorSettings
from sluice_console.settings import ConsoleSettings
from sluice_inventory.settings import InventorySettings
from sluice_node_agent.settings import NodeAgentSettings
from sluice_pod_watcher.settings import PodWatcherSettings

PARTS: tuple[tuple[str, str, type[CommonSettings]], ...] = (
    ("Every service, and the `sluice` command", "", CommonSettings),
    ("Allocator", "allocator", AllocatorSettings),
    ("`sluice` command and web page", "console", ConsoleSettings),
    ("Inventory", "inventory", InventorySettings),
    ("Node agent", "node-agent", NodeAgentSettings),
    ("Pod-watcher and webhook", "pod-watcher", PodWatcherSettings),
)
"""A heading, the service's name in its variables and in the settings file, and its settings."""

HEAD = """# Settings

Generated from the code by `make docs`; do not edit.

A service reads its settings at its start, from a TOML file (`SLUICE_CONFIG`) and the environment, which wins. An
unknown name or wrong value ends the start with a sentence. Lists in the environment have commas. In the file, names
are lower-case without prefix: common settings at the top level, a service's own in its table; other tables are ignored.
Units come last: `_S` is seconds.

```toml
nats_url = "nats://127.0.0.1:4222"
[node-agent]
nodes = ["gpu-1.example.internal"]
```

A service's own spelling of a common variable (`SLUICE_NODE_AGENT_LOG_LEVEL`) counts for it alone. Secrets are in files
that settings name ([security.md](security.md#certificates)).
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for part in PARTS for line in _part(*part))])


def _part(title: str, service: str, settings: type[CommonSettings]) -> Iterator[str]:
    yield f"## {title}\n"
    if service:
        yield f"Table `[{service}]`.\n"
    yield "| variable | default | meaning |\n|---|---|---|"
    prefix = f"{PREFIX}{service.replace('-', '_').upper()}_" if service else PREFIX
    meanings = _meanings(settings)
    for field in msgspec.structs.fields(settings):
        if service and field.name in CommonSettings.__struct_fields__:
            continue
        default, choices = _value(field.default), _choices(field.type, meanings[field.name])
        yield f"| `{prefix}{field.name.upper()}` | {default} | {meanings[field.name]}{choices} |"
    yield ""


def _meanings(settings: type[CommonSettings]) -> dict[str, str]:
    """The docstring behind each field. Raises LookupError for a field without one."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
            found[field.target.id] = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", " ".join(text.split()))
            if not text:
                raise LookupError(f"{settings.__name__}.{field.target.id} has no docstring")
    return found


def _value(default: Any) -> str:
    """A default as it would be written in the environment."""
    if default is None or default is msgspec.NODEFAULT:
        return "unset"
    if default in ("", ()):
        return "empty"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    if isinstance(default, tuple):
        return ", ".join(f"`{each}`" for each in default)
    assert isinstance(default, (int, str, PurePath))
    return f"`{default}`"


def _choices(wanted: Any, meaning: str) -> str:
    """The values of a setting that has only some, unless its meaning names each."""
    if get_origin(wanted) in {Union, UnionType}:
        return "".join(_choices(each, meaning) for each in get_args(wanted))
    values = [f"`{each}`" for each in get_args(wanted)] if get_origin(wanted) is Literal else []
    return f" One of {', '.join(values)}." if any(value not in meaning for value in values) else ""
