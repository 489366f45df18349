"""The places of the life-cycle suite: where rollouts run, and how a test reaches them."""
