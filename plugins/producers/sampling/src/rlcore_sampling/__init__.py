"""The producers that sample: synchronous and asynchronous rollouts."""
