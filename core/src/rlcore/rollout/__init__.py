"""From prompts to scored groups: the data buffer, the producer of rollouts, and the way into a batch."""
