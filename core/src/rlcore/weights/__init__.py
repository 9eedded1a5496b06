"""What weights are: FP8 blocks, checksums, what config.json says of them, and checks against it."""
