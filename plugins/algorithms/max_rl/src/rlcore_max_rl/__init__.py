"""MaxRL: advantages relative to the mean reward of the group."""
