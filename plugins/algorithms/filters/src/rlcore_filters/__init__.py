"""Group filters: overlong responses, duplicates, groups too easy or too hard."""
