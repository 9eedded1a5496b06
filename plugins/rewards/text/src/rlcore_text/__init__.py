"""Rewards that compare the text of a response with the label of its prompt."""
