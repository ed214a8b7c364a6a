"""The pages of the store, and what they show: `pages` serves them."""
