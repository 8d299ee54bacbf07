"""The command line of `sluice bench`."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from sluice_console.shell.cli_options import AsJson, Documented, UsageError, form_of, run


def add_to(app: App) -> None:
    """Register the verb."""
    app.command(bench_command, name="bench")


def bench_command(
    *,
    requests: Annotated[int, Parameter(help="Number of pods, or of arrivals of a workload.")] = 1000,
    rate: Annotated[float, Parameter(help="Pods per second; 0 is all at once.")] = 0.0,
    burst: Annotated[int, Parameter(help="Pods per burst, with --rate.")] = 1,
    mix: Annotated[str, Parameter(help="Profiles and their weights.")] = "1g.5gb=6,2g.10gb=3,3g.20gb=1",
    replay: Annotated[Path | None, Parameter(help="Replay a workload file (docs/simulate.md) instead.")] = None,
    speed: Annotated[float, Parameter(help="Replay so many times as fast.")] = 1.0,
    nodes: Annotated[int, Parameter(help="Simulated nodes.")] = 200,
    gpus: Annotated[int, Parameter(help="GPUs per node.")] = 8,
    model: Annotated[str, Parameter(help="GPU model.")] = "A100-SXM4-40GB",
    processes: Annotated[
        int | None,
        Parameter(help="Maximum number of processes for all node agents; by default one per core, at most 8."),
    ] = None,
    running: Annotated[
        bool, Parameter(negative="", help="Use the running `sluice up` instead of starting a system.")
    ] = False,
    ceiling: Annotated[bool, Parameter(help="Measure the bare broker too.")] = True,
    within_s: Annotated[float, Parameter(help="Time limit of each part, in seconds.")] = 300.0,
    svg: Annotated[Path | None, Parameter(help="Write a chart to this SVG file.")] = None,
    json: AsJson = False,
    output: Documented = None,
) -> int:
    """Measure how fast pods get slices, and compare with the same messages on a bare broker (docs/bench.md).

    Exit code 0: every pod was bound or refused, nothing was allocated twice, everything was released; 1 otherwise."""
    from sluice_console.shell.bench.bench import BenchOptions
    from sluice_console.shell.bench.show import bench_and_show
    from sluice_console.shell.process.system import agent_processes

    processes = agent_processes() if processes is None else processes
    if processes < 1 or not within_s > 0:
        raise UsageError(f"--processes {processes} --within-s {within_s:g}: must be more than 0")
    asked = BenchOptions(
        requests=requests,
        rate=rate,
        burst=burst,
        mix=mix,
        replay=replay,
        speed=speed,
        nodes=nodes,
        gpus=gpus,
        model=model,
        processes=processes,
        running=running,
        with_ceiling=ceiling,
        within_s=within_s,
    )
    return run(bench_and_show(asked, svg=svg, form=form_of(output, json=json)))
