"""The SGLang server as an engine of rlcore."""
