"""What services may share: hardware rules (`mig`), messages (`contracts`), I/O (`runtime`); for tests, `testing`."""
