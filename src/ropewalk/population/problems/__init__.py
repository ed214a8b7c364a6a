"""Problems that examples and tests solve."""
