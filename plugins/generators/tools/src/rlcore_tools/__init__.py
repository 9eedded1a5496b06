"""Tools for the policy, for rlcore."""
