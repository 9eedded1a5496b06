"""One model of a run on one rank."""
