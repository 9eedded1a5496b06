"""The trainer on megatron-core for rlcore."""
