"""The layers of a decoder, and what they compute."""
