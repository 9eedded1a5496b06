"""Prompts on their way in, batches on their way to the trainer."""
