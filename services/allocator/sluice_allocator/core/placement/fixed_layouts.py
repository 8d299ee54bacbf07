"""
GPUs with a layout fixed by the administrator: the instances of a report, and those out of use.

The ledger decides which instances are taken; an agent's report of that is older, so it is ignored.
"""

from sluice.contracts.messages import GpuReport
from sluice.mig.layout import Instance, Layout
from sluice.mig.model import GpuModel, Placement


def layout_of(report: GpuReport, model: GpuModel) -> Layout | None:
    """
    The instances of a GPU with a fixed layout, by start; None for any other GPU.

    An instance that the GPU's own profiles do not allow at its place cannot be named in a grant, so it is left out.
    """
    if not report.fixed_layout or not report.mig_enabled:
        return None
    found = [Instance(each.profile, each.start, each.size) for each in report.instances]
    return tuple(sorted((each for each in found if _is_known(model, each)), key=lambda each: (each.start, each)))


def not_to_be_had(report: GpuReport) -> tuple[Placement, ...]:
    """The spans of instances that their agent does not offer: without compute instance, or used by other processes."""
    if not report.fixed_layout:
        return ()
    return tuple(Placement(each.start, each.size) for each in report.instances if each.unusable)


def _is_known(model: GpuModel, instance: Instance) -> bool:
    profile = model.profile(instance.profile)
    return profile is not None and Placement(instance.start, instance.size) in profile.placements
