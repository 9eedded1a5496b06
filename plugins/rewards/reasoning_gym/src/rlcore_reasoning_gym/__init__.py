"""The procedural tasks of reasoning-gym."""
