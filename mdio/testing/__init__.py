"""What every layout must do, as classes of tests: for those who write one, here or elsewhere."""
