"""The trainer `fsdp`: any causal language model of transformers, sharded by FSDP2."""
