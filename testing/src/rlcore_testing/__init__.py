"""What the tests of rlcore and of its plugins share."""
