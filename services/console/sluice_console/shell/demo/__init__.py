"""`sluice demo`: a short story on simulated GPUs."""
