"""From the flags of another framework's run to a TOML of rlcore, with a word on each flag."""
