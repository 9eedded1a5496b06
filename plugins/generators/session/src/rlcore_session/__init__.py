"""Agents that speak OpenAI's or Anthropic's protocol, as a generator of rlcore."""
