"""The contract between rlcore and its plugins. It imports no other package of rlcore.

Read it in this order:

1. `types`: the nouns, `Prompt` → `Sample` → `Group`; `errors`.
2. `hookspecs`, `records`: what a plugin registers; `config`, `part_config`: its settings.
3. The interface of each kind: `sources`, `generation`, `scoring` (rewards, filters), `producer`, `training`
   (advantages, losses, corrections), `trainer`, `engine`, `cluster`, `model_hook`, `tracker`, `callback`.
4. What several plugins need: `maths`, `chat`, `tokens`, `model_facts`, `optimizer`.
"""
