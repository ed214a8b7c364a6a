"""Groups: the communication between the members of an exchange."""
