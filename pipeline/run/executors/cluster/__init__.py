"""The executor of a cluster, which `features/cluster` brings."""
