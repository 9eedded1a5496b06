"""Tables of the settings of other frameworks."""
