"""docs/values.md and the chart's values.schema.json, from deploy/helm/sluice/values.yaml."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from chart import CHART

VALUES = CHART / "values.yaml"
SCHEMA = CHART / "values.schema.json"
HEAD = """# Values of the Helm chart

Generated from `deploy/helm/sluice/values.yaml` by `make docs`; do not edit. `values.schema.json` refuses other names
and types. What is beside or below a value here, with no line of its own, is of the same kind.
"""
SHOWN_MAX = 40
"""Characters of a default that the page shows."""
_KEY = re.compile(r"^( *)([A-Za-z0-9]+):(?: (.*))?$")
Json = dict[str, Any]

_TEXTS: Json = {"type": "array", "items": {"type": "string"}}
_MAP: Json = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_ENV: Json = {**_MAP, "patternProperties": {"_(MPS_CONTROL|QUOTA_LIBRARY)$": {"type": "string"}}}
"""In YAML `off` is false, which would be a program's name."""
_PORT: Json = {"type": "integer", "minimum": 1, "maximum": 65535}
_TOLERATION: Json = {
    "type": "object",
    "properties": {
        **{key: {"type": "string"} for key in ("key", "operator", "value", "effect")},
        "tolerationSeconds": {"type": "integer"},
    },
    "additionalProperties": False,
}
_NAMESPACE: Json = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_QUANTITIES: Json = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
_RESOURCES: Json = {
    "type": "object",
    "properties": {"requests": _QUANTITIES, "limits": _QUANTITIES},
    "required": ["requests"],
    "additionalProperties": False,
}
_IMAGE: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "registry": {"type": "string"},
        "tag": {"type": "string"},
        "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
RULES: tuple[tuple[str, Json], ...] = (
    (r"images\.(registry|tag)", {"type": "string"}),
    (r"images\.pullPolicy", {"enum": ["", "Always", "IfNotPresent", "Never"]}),
    (r"images\.pullSecrets", _TEXTS),
    (r"images\.\w+", _IMAGE),
    (r"replicas", {"enum": ["single", "ha"]}),
    (r"handOver", {"enum": ["auto", "dra", "tickets"]}),
    (r"deviceClasses\.sluice", {"enum": ["auto", True, False]}),
    (r"webhook\.certificate", {"enum": ["self", "cert-manager"]}),
    (r"nodeAgent\.maxUnavailable", {"type": ["integer", "string"], "minimum": 1, "pattern": "^([1-9][0-9]?|100)%$"}),
    (r"nodeAgent\.kubeletRoot", {"type": "string", "pattern": "^/."}),
    (r"(.*\.)?env", _ENV),
    (r"(.*\.)?(nodeSelector|annotations|labels|podAnnotations)", _MAP),
    (r"(.*\.)?tolerations", {"type": "array", "items": _TOLERATION}),
    (r"autoscaling\.nodesAskedMax", {"type": "integer", "minimum": 0, "maximum": 100}),
    (r"(.*\.)?(resources|driverResources)", _RESOURCES),
    (r"namespaces\.nodes|test\.namespace|metrics\.prometheusNamespace", _NAMESPACE),
    (r"exemptNamespaces", {"type": "array", "items": _NAMESPACE}),
    (r"web\.hosts", _TEXTS),
    (r"nats\.storage\.size", {"type": "string", "pattern": "^([1-9][0-9]+Gi|[1-9][0-9]*Ti)$"}),
    (r"inventory\.record\.volume", {"enum": ["emptyDir", "claim", "none"]}),
    (r"inventory\.record\.size", {"type": "string", "pattern": "^[1-9][0-9]*[MGT]i$"}),
    (r"nats\.externalUrl", {"type": "string", "pattern": "^((tls|nats)://.+)?$"}),
    (r"tracing\.endpoint", {"type": "string", "pattern": "^(https?://.+)?$"}),
    (r"tracing\.viewer", {"type": "string", "pattern": r"^(https?://.*\{trace_id\}.*)?$"}),
    (r"networkPolicies\.apiServerPorts", {"type": "array", "items": _PORT, "minItems": 1}),
    (r"uninstall\.waitSeconds", {"type": "integer", "minimum": 1, "maximum": 3600}),
)
"""What may stand at a path, where the type of its default does not say all."""


def schema() -> str:
    """The text of values.schema.json."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Values of the chart sluice"}
    whole = {**about, **_schema_of(yaml.safe_load(VALUES.read_text(encoding="utf-8")), "")}
    whole["properties"]["global"] = {"type": "object"}  # Helm's own, where this is part of another chart
    return json.dumps(whole, indent=1) + "\n"


def _rule(path: str) -> Json | None:
    return next((rule for pattern, rule in RULES if re.fullmatch(pattern, path)), None)


def _schema_of(value: Any, path: str) -> Json:
    rule = _rule(path)
    if rule is not None:
        return rule
    if isinstance(value, dict):
        below = {key: _schema_of(each, f"{path}.{key}".lstrip(".")) for key, each in value.items()}
        # null takes a default away, as does a section of which all is commented out; a selector may do without
        needed = [key for key, each in value.items() if each not in ("", [], {}) and key != "nodeSelector"]
        return {"type": "object", "properties": below, "required": needed, "additionalProperties": False}
    names: dict[type, str] = {bool: "boolean", int: "integer", str: "string", list: "array"}
    return {"type": names[type(value)]}


def page() -> str:
    """The text of docs/values.md."""
    return "\n".join([HEAD, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    """Sections, and values that have a comment. Raises ValueError for one that no comment is about."""
    values = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    told: dict[str, bool] = {}
    for path, comment, is_neighbour in _lines(values):
        if not path:
            yield f"\n## {comment}\n"
            continue
        is_leaf = _is_leaf(values, path)
        # a comment holds for what is below its value, and for its neighbours up to the next empty line
        told[path] = (
            bool(comment) or told.get(path.rpartition(".")[0], False) or (is_neighbour and [*told.values()][-1])
        )
        if is_leaf and not told[path]:
            raise ValueError(f"{VALUES.name}: {path} has no comment: write one above it")
        if comment:
            shown = _flow(_at(values, path)) if is_leaf else ""
            yield f"- `{path}`{f'=`{shown}`' if shown else ''}: {comment}"


def _lines(values: Json) -> Iterator[tuple[str, str, bool]]:
    """Each section as ("", title, ...), each value as (path, comment, whether it directly follows another)."""
    comment: list[str] = []
    names: list[tuple[int, str]] = []
    leaf, follows = -1, False
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        match, indent = _KEY.match(line), len(line) - len(line.lstrip())
        if line.startswith("# -- "):
            yield "", line.removeprefix("# -- "), False
        elif not line.strip():
            comment, follows = [], False
        elif -1 < leaf < indent:
            continue  # within a value
        elif line.lstrip().startswith("#"):
            comment.append(line.strip("# "))
        elif match:
            names = [*(each for each in names if each[0] < indent), (indent, match[2])]
            path = ".".join(name for _, name in names)
            yield path, " ".join(comment), follows
            leaf, follows, comment = indent if _is_leaf(values, path) else -1, True, []


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def _is_leaf(values: Json, path: str) -> bool:
    return not isinstance(_at(values, path), dict) or _rule(path) is not None


def _flow(value: Any) -> str:
    """A default, where it is short."""
    shown = json.dumps(value) if isinstance(value, (str, bool, list)) or value == {} else _braces(value)
    return shown if len(shown) <= SHOWN_MAX else ""


def _braces(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_braces(each)}" for key, each in value.items()) + "}"
    return str(value)
