"""The engines and frozen models of a run: where they run, their servers, their weights."""
