"""REINFORCE, RLOO and REINFORCE++: advantages without a critic, and the plain policy-gradient loss."""
