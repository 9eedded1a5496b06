"""Programs that nobody trusts, isolated from the machine."""
