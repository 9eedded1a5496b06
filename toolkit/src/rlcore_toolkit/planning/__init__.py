"""What `rlcore plan` and the planners of trainers share."""
