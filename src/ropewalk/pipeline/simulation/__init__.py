"""The simulator and what it gives: a timeline, drawn for terminals, pages and Perfetto."""
