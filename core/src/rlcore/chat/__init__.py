"""Chats: messages to token ids and back, and tool calls in the formats of the model families."""
