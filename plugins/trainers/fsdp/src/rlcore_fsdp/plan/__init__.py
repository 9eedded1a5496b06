"""What a run with this trainer needs on each GPU: a step of its own code on tensors without memory."""
