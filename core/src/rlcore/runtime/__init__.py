"""The run: a cluster holds the processes, one loop drives them."""
