"""Direct preference optimization on given pairs."""
