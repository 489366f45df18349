"""RolloutClient: rollouts on one or several rollout servers, for whoever trains on them."""

from osmosis_ai.rollout.client.client import RolloutClient
from osmosis_ai.rollout.client.rollout import Rollout

__all__ = ["Rollout", "RolloutClient"]
