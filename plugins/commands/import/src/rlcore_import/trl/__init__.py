"""TRL: Python programs that start its trainers, and their flags."""
