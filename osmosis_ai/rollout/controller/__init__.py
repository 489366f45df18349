"""What a rollout calls back: its model's endpoint and the place for its answers."""

from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller

__all__ = ["Controller", "RolloutEndpoint"]
