"""The cluster `processes`: this machine. Each process is forked from one that has the imports behind it."""
