"""The cluster `ray`: actors that Ray places, on a Ray of the run's own or on one that is there."""
