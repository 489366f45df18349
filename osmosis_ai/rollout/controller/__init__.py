"""What a rollout calls back: its model's endpoint, and the place its answers go to."""
