"""What happens when something dies. Pure decisions: no sockets, no processes, no clock of their own."""
