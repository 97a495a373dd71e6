"""What several commands share: options, workers, ranks, help."""
