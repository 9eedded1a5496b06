"""GSPO: one importance ratio for each sequence."""
