"""A rollout under way, whoever drives it: its slot, its deadline, what its answers come to."""
