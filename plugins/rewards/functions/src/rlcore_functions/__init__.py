"""Plain Python functions as rewards: those of TRL, verl and slime too."""
