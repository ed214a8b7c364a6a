"""Groups: how the members of an exchange reach each other."""
