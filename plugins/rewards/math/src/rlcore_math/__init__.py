"""A reward for mathematical answers."""
