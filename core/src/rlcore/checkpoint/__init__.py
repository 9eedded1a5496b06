"""Run and checkpoint folders, and what is allowed to be read from them."""
