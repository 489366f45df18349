"""RolloutClient: rollouts on one or several rollout servers, for whoever trains on them."""
