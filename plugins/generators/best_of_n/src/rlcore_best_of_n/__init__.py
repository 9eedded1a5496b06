"""The best of several candidates, for rlcore."""
