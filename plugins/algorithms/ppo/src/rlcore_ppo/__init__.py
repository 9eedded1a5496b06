"""PPO with a critic: generalized advantage estimation and the clipped value loss."""
