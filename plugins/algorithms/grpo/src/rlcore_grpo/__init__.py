"""GRPO and its kin: advantages relative to the group, losses with a trust region, a group filter."""
