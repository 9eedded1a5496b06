"""From a rank's share of a rollout batch to optimizer steps: forwards, advantages, losses, checks."""
