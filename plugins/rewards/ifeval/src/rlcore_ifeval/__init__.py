"""A reward for verifiable instructions."""
