"""The processes that train and generate, and the calls to them."""
