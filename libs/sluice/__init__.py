"""What two Sluice services may share: hardware rules (`mig`), messages (`contracts`), I/O (`runtime`); and `testing`."""
