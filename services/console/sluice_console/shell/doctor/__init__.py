"""`sluice doctor`: reads the bus and the cluster, and reports what is wrong."""
