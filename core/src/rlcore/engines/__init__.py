"""Generation servers: how one is launched, watched, asked, given new weights and stopped."""
