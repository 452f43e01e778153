"""The checks and measurements of the product: simulator, judges, benchmarks."""
