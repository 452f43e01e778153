"""What the product is checked and measured with: simulator, judges, benchmarks."""
