"""What the demo, the tests and the benchmarks attack: data sets, recipes, training."""
