"""`sluice simulate`: the production core on virtual time, without a cluster."""
