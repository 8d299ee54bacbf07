"""The requests and answers between the HTTP front and the verbs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import yaml
from fake_kube.errors import ApiError, Json
from fake_kube.rbac import User
from fake_kube.resource_types import Target


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    target: Target
    user: User
    parameters: Mapping[str, str] = field(default_factory=dict)
    kind: str = "application/json"
    body: bytes = b""

    @property
    def dry_run(self) -> bool:
        return bool(self.parameters.get("dryRun")) or "All" in (self._options().get("dryRun") or [])

    def document(self) -> Json:
        """The body as an object. Raises ApiError: 400 where it is none."""
        try:
            found = yaml.safe_load(self.body) if "yaml" in self.kind else json.loads(self.body or b"{}")
        except (ValueError, yaml.YAMLError) as fault:
            raise ApiError(400, f"the object provided is unrecognized: {fault}") from fault
        if not isinstance(found, dict):
            raise ApiError(400, "the object provided is unrecognized: it is no object")
        return found

    def _options(self) -> Json:
        return self.document() if self.target.verb == "delete" and self.body else {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered with."""

    code: int
    body: Json
    warnings: list[str] = field(default_factory=list)


def stamp() -> str:
    """Now, as metadata says it: UTC in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
