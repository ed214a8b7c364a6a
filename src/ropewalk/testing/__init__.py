"""For those who write engines and test programs: conformance suites and fault injection."""
