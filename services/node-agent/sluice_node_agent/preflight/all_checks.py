"""All preflight checks, in the order in which an operator would do them."""

from sluice_node_agent.preflight.environment import check_journal, check_mps, check_others, check_toolkit
from sluice_node_agent.preflight.findings import Check, Finding, Machine
from sluice_node_agent.preflight.gpus import check_compute_mode, check_driver, check_gpus, check_instances, look_at_gpus
from sluice_node_agent.preflight.permissions import (
    check_capability_files,
    check_directories,
    check_host_processes,
    check_rights,
    check_socket_paths,
)
from sluice_node_agent.preflight.tickets import check_hand_over, check_tickets


def check_machine(machine: Machine) -> list[Finding]:
    """Run all checks. A simulated node skips those of hardware."""
    found = [] if machine.simulated else check_driver(machine)
    opened, devices = look_at_gpus(machine)
    found += opened
    if all(finding.check is not Check.LIBRARY or finding.level == "ok" for finding in opened):
        found += check_gpus(machine, devices)
        found += check_instances(machine, devices)
        found += check_compute_mode(machine, devices)
    if not machine.simulated:
        found += check_rights(machine, devices)
        found += check_capability_files(machine, devices)
        seen = check_host_processes(machine)
        found += seen
        if all(finding.level == "ok" for finding in seen):
            found += check_others(machine)
        found += check_toolkit(machine)
    found += check_mps(machine, devices)
    found += check_directories(machine)
    found += check_tickets(machine)
    found += check_hand_over(machine)
    found += check_socket_paths(machine)
    found += check_journal(machine)
    return found
