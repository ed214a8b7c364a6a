"""What chooses actions, one file each."""
