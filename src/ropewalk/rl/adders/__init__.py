"""What turns the steps of actors into items of replay, one file each."""
