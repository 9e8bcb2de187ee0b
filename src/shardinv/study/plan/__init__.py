"""What a study measures: points, and grids of them."""
