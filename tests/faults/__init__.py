"""Faults on purpose: kills and errors at any system call, power cuts, two writers; `make test-faults`."""
