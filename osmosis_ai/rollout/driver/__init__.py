"""How a rollout is reached: in this process, or on a server."""
