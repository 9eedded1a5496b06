"""Training on given responses and pairs: the producer, SFT and DPO."""
