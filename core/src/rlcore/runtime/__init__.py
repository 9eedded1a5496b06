"""The run: Ray places the processes, one loop drives them."""
