"""The command line: parse, wire, run, print. `main` has the commands; each has a file of its own."""
