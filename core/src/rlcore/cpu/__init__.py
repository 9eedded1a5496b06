"""What makes servers and trainers fast on a CPU: kernels that torch lacks, and memory that is kept."""
