"""For authors of model bridges: their conformance suite."""
