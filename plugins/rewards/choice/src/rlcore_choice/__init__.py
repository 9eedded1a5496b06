"""A reward for multiple-choice answers."""
