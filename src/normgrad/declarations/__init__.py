"""What operators are: their declarations, their options, and the problems they reduce to."""
