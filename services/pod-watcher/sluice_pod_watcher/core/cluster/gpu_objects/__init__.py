"""The Gpu objects that `kubectl get gpus` shows."""
