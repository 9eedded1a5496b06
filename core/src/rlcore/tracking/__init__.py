"""What a run shows and leaves behind: metrics, samples, the live table, the reward curve."""
