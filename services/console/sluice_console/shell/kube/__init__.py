"""The bus of a cluster, reached through a kubeconfig."""
