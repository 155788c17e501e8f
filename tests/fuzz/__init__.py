"""A seeded fuzzer of files, states, arguments and pages: `python -m fuzz.run`, or `make fuzz`."""
