"""The text output of `check` and `show`: aligned plain text, one line per item."""

from collections.abc import Iterator, Sequence

from sluice_node_agent.preflight.findings import Finding, in_order, worst
from sluice_node_agent.shell.commands.view import Shown, ShownDevice, ShownGpu, ShownHome, ShownInstance

_VERDICTS = {
    "ok": "nothing must be fixed",
    "warning": "nothing must be fixed; read the warnings",
    "problem": "something must be fixed",
}


def findings_text(node: str, findings: Sequence[Finding]) -> str:
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in in_order(findings):
        lines.append(f"{finding.level:<7}  {finding.check:<{width}}  {finding.what}")
        if finding.remedy:
            lines.append(f"{'':<7}  {'':<{width}}  -> {finding.remedy}")
    return "\n".join((*lines, f"node {node}: {_VERDICTS[worst(findings)]}"))


def shown_text(shown: Shown) -> str:
    return "\n".join(_lines(shown))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _lines(shown: Shown) -> Iterator[str]:
    if shown.source == "agent":
        yield f"node {shown.node}, from its agent (run {shown.agent_run}, generation {shown.generation})"
    else:
        yield f"node {shown.node}, from its journal and devices: no agent answers"
    facts = [("boot", shown.boot_id), ("driver", shown.driver_version), ("toolkit", shown.toolkit_version)]
    facts.append(("modes", ", ".join(shown.modes)))
    if any(value for _, value in facts):
        yield "  ".join(f"{name} {value}" for name, value in facts if value)
    indexes: dict[str, str] = {gpu.uuid: str(gpu.index) for gpu in shown.gpus}
    yield from _section("GPUs", ("GPU", "MODEL", "MEMORY", "MIG", "STATE", "UUID"), _gpu_rows(shown.gpus))
    yield from _section(
        "instances",
        ("GPU", "PROFILE", "AT", "MIG DEVICE", "OF"),
        [_instance_row(gpu, instance) for gpu in shown.gpus for instance in gpu.instances],
    )
    yield from _section(
        "homes of shares",
        ("GPU", "PROFILE", "AT", "HOME", "FOR", "DAEMON", "PID", "CLIENTS"),
        [_home_row(home, indexes) for home in shown.homes],
    )
    yield from _section(
        "slices",
        ("ALLOCATION", "REQUEST", "POD", "STATE", "DEVICES"),
        [
            (
                each.allocation,
                each.request,
                f"{each.namespace}/{each.name}",
                each.state,
                ", ".join(_device(device, indexes) for device in each.devices),
            )
            for each in shown.slices
        ],
    )
    yield from _sentences(shown)


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    if rows:
        yield from aligned([head, *rows])
    else:
        yield f"no {title}"


def _gpu_rows(gpus: Sequence[ShownGpu]) -> list[tuple[str, ...]]:
    return [
        (
            str(gpu.index),
            gpu.model,
            f"{gpu.memory_mib} MiB" if gpu.memory_mib else "memory unknown",
            ("on, fixed layout" if gpu.fixed_layout else "on") if gpu.mig_enabled else "off",
            gpu.state,
            gpu.uuid,
        )
        for gpu in gpus
    ]


def _instance_row(gpu: ShownGpu, instance: ShownInstance) -> tuple[str, ...]:
    of = {"slice": instance.of, "home": f"home {instance.of}", "warm": "kept warm", "foreign": "foreign"}
    of |= {"free": "free", "unusable": f"not to be had: {instance.of}"}
    return (
        str(gpu.index),
        instance.profile,
        f"{instance.start}:{instance.size}",
        instance.uuid or "no compute instance",
        of[instance.owner],
    )


def _home_row(home: ShownHome, indexes: dict[str, str]) -> tuple[str, ...]:
    return (
        indexes.get(home.gpu, home.gpu),
        home.profile or "whole",
        str(home.start),
        home.home or "-",
        f"{home.namespace} uid {home.uid}",
        home.state,
        str(home.pid or "-"),
        "-" if home.clients is None else str(home.clients),
    )


def _device(device: ShownDevice, indexes: dict[str, str]) -> str:
    place = f"GPU {indexes.get(device.gpu, device.gpu)}"
    if device.profile is not None:
        place += f" {device.profile}@{device.start}"
    return place if device.mode == "exclusive" else f"{place} {device.mode} {device.memory_mib} MiB"


def _sentences(shown: Shown) -> Iterator[str]:
    ill = [gpu for gpu in shown.gpus if gpu.state != "ok"]
    said = [f"GPU {gpu.index} is {gpu.state}: {gpu.message or 'no reason is known'}" for gpu in ill]
    said += [
        f"GPU {gpu.index} has {span.size} memory slices from {span.start} in quarantine"
        for gpu in shown.gpus
        for span in gpu.quarantined
    ]
    said += [f"home {home.home or home.device}: {home.message}" for home in shown.homes if home.message]
    said += shown.warnings
    said += shown.problems
    if said:
        yield ""
    for sentence in said:
        yield f"! {sentence}"
