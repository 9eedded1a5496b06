"""What tests and the GPU kit use of this engine."""
