"""What runs leave behind: logs per rank, the split of step time, files."""
