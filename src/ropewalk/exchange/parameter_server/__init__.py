"""Parameter servers: shards that add up gradients, or own the weights, and an exchange that uses them."""
