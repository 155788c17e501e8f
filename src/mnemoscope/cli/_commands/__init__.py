"""The commands, one file each: `main(arguments) -> exit code`."""
