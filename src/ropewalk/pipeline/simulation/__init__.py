"""The simulator and its result: a timeline, drawn for terminals, as SVG and for Perfetto."""
