"""What verification does in each process."""
