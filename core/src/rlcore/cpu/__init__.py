"""What servers and trainers need on a CPU to be fast: kernels that torch lacks, and memory that stays."""
