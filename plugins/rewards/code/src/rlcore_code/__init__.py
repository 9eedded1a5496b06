"""A reward for programs: unit tests in a sandbox."""
