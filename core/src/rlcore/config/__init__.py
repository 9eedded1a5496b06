"""Configuration: frozen models, layers (defaults < recipe < file < flags), TOML in and out."""
