"""On-policy distillation: a student learns a teacher's distribution on the tokens that it samples itself."""
