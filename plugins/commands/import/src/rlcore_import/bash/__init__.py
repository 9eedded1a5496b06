"""What a bash script hands the training program: the script is read, and nothing is executed."""
