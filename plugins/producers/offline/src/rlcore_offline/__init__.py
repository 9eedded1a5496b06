"""The producer for responses that the data give."""
