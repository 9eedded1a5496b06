"""verl: overrides of `verl.trainer.main_ppo`, in a run script, as words, or as a YAML of hydra."""
