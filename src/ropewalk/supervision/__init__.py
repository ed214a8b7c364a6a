"""What happens when a process dies. Pure decisions: no sockets, no processes, no clock of their own."""
