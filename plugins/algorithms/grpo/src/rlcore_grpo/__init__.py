"""GRPO, Dr. GRPO and DAPO: group advantages, the clipped policy loss, group filters."""
