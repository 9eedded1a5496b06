"""The ways of new weights to engines that several of these have, beside whole directories."""
