"""Sessions, agents and the processes they host."""
