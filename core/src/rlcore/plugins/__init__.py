"""The plugin core: records, hook specifications, loader and registry."""
