"""Learning from data that was recorded before: data sets, and the loop that trains on them."""
