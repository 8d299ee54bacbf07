"""What was found on real hardware, kept as JSON and Markdown; anonymous: GPUs by their index."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

PROFILE = "profile "
"""How facts about a MIG profile begin: the page leaves them to the JSON file, and to the differences."""
INTRODUCTION = (
    "Written by `tests/gpu`: observed on a machine with this GPU. Its profiles are in [{0}.json]({0}.json), and below "
    "where they differ from the [catalog](../models.md)."
)
OUTCOMES = {"passed": "passed", "failed": "FAILED", "skipped": "skipped", "error": "error"}


@dataclass(slots=True)
class HardwareReport:
    """Facts by section, differences from the catalog, and what became of each check."""

    facts: dict[str, dict[str, object]] = field(default_factory=dict)
    differences: list[dict[str, object]] = field(default_factory=list)
    checks: dict[str, dict[str, str]] = field(default_factory=dict)

    def fact(self, section: str, what: str, value: object) -> None:
        """Keep one thing that was seen. Values are what JSON can hold."""
        self.facts.setdefault(section, {})[what] = value

    def check(self, name: str, outcome: str, why: str = "") -> None:
        """Keep what became of a check. Of several results of one (its set-up, itself), a bad one stays."""
        known = self.checks.get(name)
        if known is None or known["outcome"] == "passed":
            self.checks[name] = {"outcome": outcome, "why": why}

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files, named after the first GPU's model. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        models = [value for section in self.facts.values() for what, value in section.items() if what == "model"]
        stem = re.sub(r"[^a-z0-9]+", "-", str(models[0] if models else "unknown").lower()).strip("-")
        as_json, as_markdown = folder / f"{stem}.json", folder / f"{stem}.md"
        whole = {"facts": self.facts, "differences": self.differences, "checks": self.checks}
        as_json.write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        as_markdown.write_text(self.markdown(stem), encoding="utf-8")
        return as_json, as_markdown

    def markdown(self, title: str) -> str:
        lines = [f"# {title}", "", INTRODUCTION.format(title)]
        for section, facts in sorted(self.facts.items(), key=lambda each: _rank(each[0])):
            lines += ["", f"## {section}", "", "| what | observed |", "|---|---|"]
            lines += [
                f"| {_cell(what)} | {_cell(value)} |" for what, value in facts.items() if not what.startswith(PROFILE)
            ]
        lines += ["", "## Differences from the catalog", ""]
        if self.differences:
            lines += ["| GPU | what | device | catalog | contradicts |", "|---|---|---|---|---|"]
            columns = ("gpu", "what", "device", "catalog", "contradicts")
            lines += ["| " + " | ".join(_cell(each[column]) for column in columns) + " |" for each in self.differences]
        else:
            lines += ["None."]
        others = {name: check for name, check in self.checks.items() if check["outcome"] != "passed"}
        lines += ["", "## Checks", "", f"{len(self.checks) - len(others)} passed."]
        if others:
            lines += ["", "| check | outcome | reason |", "|---|---|---|"]
        lines += [
            f"| {_cell(name)} | {OUTCOMES[check['outcome']]} | {_cell(check['why'])} |"
            for name, check in others.items()
        ]
        return "\n".join(lines) + "\n"


def _rank(section: str) -> tuple[int, str]:
    return (0 if section == "machine" else 1 if section.startswith("GPU ") else 2, section)


def _cell(value: object) -> str:
    text = "yes" if value is True else "no" if value is False else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
