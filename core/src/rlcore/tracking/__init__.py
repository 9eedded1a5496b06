"""What a run shows and writes: metrics, samples, the trace, the live table, the reward curve."""
