"""From what the user gave to what a run is made of: parts are chosen, settings merged, the whole checked."""
