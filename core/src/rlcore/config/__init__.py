"""What can be set, and how it is written: config classes, layers of settings, TOML."""
