"""The production core without a cluster: `sluice simulate --fleet ... --workload ...`, on virtual time."""
