"""Agents of other people's frameworks, as rollouts."""
