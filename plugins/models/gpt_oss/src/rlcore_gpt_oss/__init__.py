"""gpt-oss for rlcore."""
