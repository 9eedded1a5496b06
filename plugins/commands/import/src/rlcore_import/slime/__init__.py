"""slime's flags: `flags.toml` knows each, and the functions of these modules what several mean together."""
